//! Executes one job, given by its only argument, and dies as configured. See `semel_proof::victim`.

use std::process::ExitCode;

use semel_proof::victim::VictimJob;

fn main() -> ExitCode {
    let Some(job) = std::env::args().nth(1) else {
        eprintln!("semel-victim: give it a job (JSON, see semel_proof::victim::Job)");
        return ExitCode::from(2);
    };
    match serde_json::from_str::<VictimJob>(&job) {
        Ok(job) => job.run(),
        Err(error) => {
            eprintln!("semel-victim: this is not a job: {error}");
            ExitCode::from(2)
        }
    }
}
