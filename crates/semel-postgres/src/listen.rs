//! Notifications of other processes.

use sqlx::PgPool;
use sqlx::postgres::{PgListener, PgPoolOptions};
use tokio::time::timeout;

use crate::PostgresSettings;
use crate::connection::CLOSE;

/// A connection that listens to one channel. It does not reconnect: notifications of the meantime are lost, and its
/// user must know that.
#[derive(Debug)]
pub struct Subscription {
    pool: PgPool,
    listener: PgListener,
}

impl Subscription {
    /// Connects and listens.
    ///
    /// # Errors
    /// The server does not answer in time, or refuses the connection.
    pub async fn open(settings: &PostgresSettings, channel: &str) -> Result<Self, sqlx::Error> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(settings.timeout)
            .connect_lazy_with(settings.options.clone());
        let listening = async {
            let mut listener = PgListener::connect_with(&pool).await?;
            listener.eager_reconnect(false);
            listener.listen(channel).await?;
            Ok(listener)
        };
        match listening.await {
            Ok(listener) => Ok(Self { pool, listener }),
            Err(error) => {
                close(&pool).await;
                Err(error)
            }
        }
    }

    /// The payload of the next notification. `None` if the connection broke.
    pub async fn next(&mut self) -> Option<String> {
        let notification = self.listener.try_recv().await.ok().flatten()?;
        Some(notification.payload().to_owned())
    }

    /// Closes the connection properly, so that the server's log stays clean.
    pub async fn close(self) {
        drop(self.listener);
        close(&self.pool).await;
    }
}

async fn close(pool: &PgPool) {
    let _ = timeout(CLOSE, pool.close()).await;
}
