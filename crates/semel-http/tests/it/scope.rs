//! Whose key it is: squatting, scope_missing, verified claims.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Request;
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use semel::time::ManualClock;
use semel_http::scope::VerifierBuilder;
use semel_http::{Body, Scope};
use serde_json::{Value, json};

use crate::kit::{Kit, Upstream, post, with};

const SECRET: &[u8; 32] = b"0123456789abcdef0123456789abcdef";
/// What the manual clock shows, in seconds.
const NOW: u64 = 1_000_000_000;

fn scoped(scope: Scope) -> Kit {
    Kit::with(Upstream::counting(), |guard| guard.scope(scope))
}

fn as_who(authorization: &str) -> Request<Body> {
    let mut request = post("k");
    request.headers_mut().remove("authorization");
    if authorization.is_empty() { request } else { with(request, "authorization", authorization) }
}

// squatting: each principal has its own room; nobody can take a key before another.
#[tokio::test]
async fn the_same_key_of_two_principals_is_two_effects() {
    let kit = scoped(Scope::default());
    assert_eq!(kit.send(as_who("Bearer a")).await.text(), "call 1");
    assert_eq!(kit.send(as_who("Bearer b")).await.text(), "call 2");
    assert_eq!(kit.send(as_who("bearer a")).await.text(), "call 3", "a credential is its bytes");
    for (who, text) in [("Bearer a", "call 1"), ("Bearer b", "call 2")] {
        let again = kit.send(as_who(who)).await;
        assert_eq!((again.text(), again.is_replay()), (text, true));
    }
}

#[tokio::test]
async fn no_credential_no_claim() {
    for (scope, name) in [("authorization", "authorization"), ("header:x-tenant", "x-tenant")] {
        let kit = scoped(Scope::parse(scope, None).unwrap());
        let answer = kit.send(as_who("")).await;
        answer.assert_problem(400, "scope_missing");
        assert!(answer.text().contains(name) && answer.text().contains("--scope single-tenant"));
        let twice = with(with(as_who(""), name, "a"), name, "b");
        kit.send(twice).await.assert_problem(400, "scope_missing");
        kit.send(with(as_who(""), name, "")).await.assert_problem(400, "scope_missing");
        assert_eq!((kit.upstream.calls(), kit.store.all_calls()), (0, 0), "R1");
        let mut unkeyed = as_who("");
        unkeyed.headers_mut().remove("idempotency-key");
        assert_eq!(kit.send(unkeyed).await.text(), "call 1", "without a key nobody is asked who they are");
    }
}

#[tokio::test]
async fn header_and_single_tenant() {
    let kit = scoped(Scope::parse("header:X-Tenant", None).unwrap());
    let of = |tenant: &str, credential: &str| with(as_who(credential), "x-tenant", tenant);
    assert_eq!(kit.send(of("one", "a")).await.text(), "call 1");
    assert!(kit.send(of("one", "b")).await.is_replay(), "the tenant counts, not the credential");
    assert_eq!(kit.send(of("two", "a")).await.text(), "call 2");

    let kit = scoped(Scope::parse("single-tenant", None).unwrap());
    assert_eq!(kit.send(as_who("")).await.text(), "call 1");
    assert!(kit.send(as_who("Bearer a")).await.is_replay());
}

// Two ways to say who asks never meet, whatever values they are given.
#[tokio::test]
async fn schemes_do_not_alias() {
    let kit = scoped(Scope::default());
    kit.send(as_who("x")).await;
    let engine = kit.guard.engine().clone();
    let other = |scope: Scope| semel_http::Guard::builder(engine.clone()).scope(scope).build().unwrap();
    let tenant = other(Scope::parse("header:x-tenant", None).unwrap());
    let answer = tenant.handle(kit.upstream.clone(), with(as_who(""), "x-tenant", "x")).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    let single = other(Scope::SingleTenant);
    let answer = single.handle(kit.upstream.clone(), as_who("x")).await.unwrap();
    assert!(!answer.headers().contains_key("idempotent-replayed"));
    assert_eq!(kit.upstream.calls(), 3);
}

fn part(json: &Value) -> String {
    URL_SAFE_NO_PAD.encode(json.to_string())
}

fn signed_hs256(head: &Value, claims: &Value) -> String {
    let text = format!("{}.{}", part(head), part(claims));
    let mark = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), text.as_bytes());
    format!("Bearer {text}.{}", URL_SAFE_NO_PAD.encode(mark))
}

fn hs256(claims: &Value) -> String {
    signed_hs256(&json!({"alg": "HS256", "typ": "JWT"}), claims)
}

fn jwt(verifier: VerifierBuilder) -> Scope {
    Scope::parse("jwt:sub", Some(verifier.clock(ManualClock::default()))).unwrap()
}

// A refreshed token of the same subject is the same principal.
#[tokio::test]
async fn a_verified_claim_is_the_principal() {
    let kit = scoped(jwt(VerifierBuilder::new().secret(SECRET)));
    let token = |sub: Value, exp| hs256(&json!({"sub": sub, "exp": exp}));
    assert_eq!(kit.send(as_who(&token(json!("alice"), NOW + 10))).await.text(), "call 1");
    assert!(kit.send(as_who(&token(json!("alice"), NOW + 20))).await.is_replay());
    assert!(kit.send(as_who(&token(json!("alice"), NOW - 59))).await.is_replay(), "within the leeway");
    assert_eq!(kit.send(as_who(&token(json!("bob"), NOW + 10))).await.text(), "call 2");
    assert_eq!(kit.send(as_who(&token(json!(7), NOW + 10))).await.text(), "call 3");
}

#[tokio::test]
async fn what_is_not_verified_is_refused() {
    let verifier = || VerifierBuilder::new().secret(SECRET);
    let kit = scoped(jwt(verifier().issuer("us").audience("api")));
    let good = json!({"sub": "alice", "exp": NOW + 10, "iss": "us", "aud": ["web", "api"]});
    assert_eq!(kit.send(as_who(&hs256(&good))).await.text(), "call 1");
    let with_claim = |name: &str, value: Value| {
        let mut claims = good.clone();
        if value.is_null() {
            claims.as_object_mut().unwrap().remove(name);
        } else {
            claims[name] = value;
        }
        hs256(&claims)
    };
    let mut forged = hs256(&good);
    forged.pop();
    forged.push('A');
    let unsigned = format!("Bearer {}.{}.", part(&json!({"alg": "none"})), part(&good));
    let other_word = signed_hs256(&json!({"alg": "none"}), &good);
    let other_alg = signed_hs256(&json!({"alg": "HS512"}), &good);
    let no_alg = signed_hs256(&json!({"typ": "JWT"}), &good);
    let critical = signed_hs256(&json!({"alg": "HS256", "crit": ["b64"]}), &good);
    for token in [
        with_claim("exp", json!(NOW - 60)),
        with_claim("exp", Value::Null),
        with_claim("exp", json!("soon")),
        with_claim("nbf", json!(NOW + 61)),
        with_claim("nbf", json!("soon")),
        with_claim("iss", json!("them")),
        with_claim("iss", Value::Null),
        with_claim("aud", json!("web")),
        with_claim("aud", Value::Null),
        with_claim("sub", Value::Null),
        with_claim("sub", json!("")),
        with_claim("sub", json!({"a": 1})),
        forged,
        unsigned,
        other_word,
        other_alg,
        no_alg,
        critical,
        "Bearer ".to_owned(),
        "Bearer a.b.c".to_owned(),
        "Bearer a.b.c.d".to_owned(),
        "Basic YTpi".to_owned(),
        format!("Bearer {}", "x".repeat(20_000)),
    ] {
        let answer = kit.send(as_who(&token)).await;
        answer.assert_problem(401, "credential_refused");
        assert!(!answer.text().contains("alice"), "nothing of the token is quoted");
    }
    kit.send(as_who("")).await.assert_problem(400, "scope_missing");
    assert_eq!(kit.upstream.calls(), 1);
}

const MODULUS: &str = "rrfyvwW5YZUtSFEtwE7ei_UYZE-cRCJaJNPze2QIFmHMvrAUDtkIw_mAM32kElQF2sBo1u1m7m_7L_tZrEyaFxDKORpJkqfE1Vgon9Ahg5angkuOXNHRspwwgqVtauftr5Wu0B7ewvtfH4S8i_kU670btdFyIAEkOjtRS1udp1nz213AYhMzrgHOUNoHGq3LxrH0HGs4Uj7q37mEt31I0oq6lK7II85pe_fc96w9yAfLHiR_raSGo9S7yS1nZk0nKUAVAAY1ofpCq_LGazznBSe4ED_Q19QM-eetfMUDpv8VwJIXpuRl-yEvy8QLL2-2pxE032PLHdTvly_NBk2L0w";
/// Of alice, until an hour after the clock's time, by the key `r1`.
const RS256: &str = "eyJhbGciOiAiUlMyNTYiLCAia2lkIjogInIxIn0.eyJzdWIiOiAiYWxpY2UiLCAiZXhwIjogMTAwMDAwMzYwMH0.FaRzSYlMNMUG-QrjIApZVdS9lV3polA3UXb1-KTIpgU4xkz3kM4MSa_7kofHlZCglaOOOr7hDwGjKA-SDl9-2QrjvVQQWL3QRDM3vEQfHyn_zTOcIZ8iRDw1BNcZH8zyzVt6HFR65anv9DHyhQqYyOC9bgxvgJrZyKxVZErBInUy6M6zEDHtZShIK-kF9tuSEQpdPuCOFG0JnQUgRJLJZesK8SQ5FJub0KqAXCweVHfO4iqYha0nIIPxLtAnORlTWPcFEkW8aGkBiaUlIJC2N7aoL7DvRsj0LbQpge3zvEfaoVyx-bCKZT_ESaAusUr795eA5EBs4uitK6jbPcuNow";

#[tokio::test]
async fn key_sets() {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random).unwrap();
    let point = pair.public_key().as_ref();
    let set = json!({"keys": [
        {"kty": "RSA", "kid": "r1", "n": MODULUS, "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "kid": "e1", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..])},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": "oct", "k": "AAAA"},
    ]});
    let kit = scoped(jwt(VerifierBuilder::new().jwks(set.to_string().as_bytes())));
    assert_eq!(kit.send(as_who(&format!("Bearer {RS256}"))).await.text(), "call 1");
    let es256 = |kid: &str| {
        let text = format!(
            "{}.{}",
            part(&json!({"alg": "ES256", "kid": kid})),
            part(&json!({"sub": "alice", "exp": NOW + 10}))
        );
        let mark = pair.sign(&random, text.as_bytes()).unwrap();
        format!("Bearer {text}.{}", URL_SAFE_NO_PAD.encode(mark))
    };
    assert!(kit.send(as_who(&es256("e1"))).await.is_replay(), "the same alice by another key");
    kit.send(as_who(&es256("r1"))).await.assert_problem(401, "credential_refused");
    // The public key as an HMAC secret: the algorithm is the key's, not the token's.
    let text = format!(
        "{}.{}",
        part(&json!({"alg": "HS256", "kid": "r1"})),
        part(&json!({"sub": "alice", "exp": NOW + 10}))
    );
    let mark = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, MODULUS.as_bytes()), text.as_bytes());
    let confused = format!("Bearer {text}.{}", URL_SAFE_NO_PAD.encode(mark));
    kit.send(as_who(&confused)).await.assert_problem(401, "credential_refused");
    kit.clock.advance(std::time::Duration::from_secs(1));
    assert_eq!(kit.upstream.calls(), 1);
}
