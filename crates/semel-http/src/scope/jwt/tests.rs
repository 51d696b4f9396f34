//! Published vectors, and damaged tokens.

use semel::time::ManualClock;
use semel_testbed::fuzz::Fuzz;
use serde_json::{Value, json};

use super::{Verifier, VerifierBuilder, decode};

/// The payload of the examples in RFC 7515 and RFC 7519.
const PAYLOAD: &str =
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";

fn by_key(key: &Value) -> Option<Verifier> {
    let builder = VerifierBuilder::new().claim("iss").clock(ManualClock::default());
    if key["kty"] == "oct" {
        let secret = decode(key["k"].as_str()?.as_bytes())?;
        return builder.secret(&secret).build().ok();
    }
    builder.jwks(json!({ "keys": [key] }).to_string().as_bytes()).build().ok()
}

#[test]
fn the_examples_of_the_standards_are_read() {
    let secret = json!({
        "kty": "oct",
        "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
    });
    let rsa = json!({
        "kty": "RSA",
        "n": concat!(
            "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SF",
            "d2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo",
            "7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkM",
            "Ls91kzk2PAcDTW9gb54h4FRWyuXpoQ",
        ),
        "e": "AQAB",
    });
    let point = json!({
        "kty": "EC",
        "crv": "P-256",
        "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
    });
    let rsa_signature = concat!(
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CU",
        "Ar7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_d",
        "O--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0ig",
        "cN_IoypGlUPQGe77Rw",
    );
    let examples = [
        ("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9", &secret, "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
        ("eyJhbGciOiJSUzI1NiJ9", &rsa, rsa_signature),
        (
            "eyJhbGciOiJFUzI1NiJ9",
            &point,
            "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        ),
    ];
    for (head, key, signature) in examples {
        let token = format!("{head}.{PAYLOAD}.{signature}");
        let verifier = by_key(key).expect("the key is supported");
        assert_eq!(verifier.verify(token.as_bytes()).as_deref(), Ok("joe"), "{head}");
        for (_, other, _) in examples {
            let read = by_key(other).expect("the key is supported").verify(token.as_bytes());
            assert_eq!(read.is_ok(), other == key, "{head} under another key");
        }
        let unsecured = format!("eyJhbGciOiJub25lIn0.{PAYLOAD}.");
        assert!(verifier.verify(unsecured.as_bytes()).is_err(), "the unsecured token of RFC 7519");
        let later = VerifierBuilder::new().claim("iss").secret(&[1; 32]).build().expect("it has a key");
        assert!(later.verify(token.as_bytes()).is_err(), "a key of somebody else");
    }
}

/// Wycheproof calls these valid, but permits refusing them: characters that are not base64url are skipped.
const SKIPPED_CHARACTERS: [u64; 2] = [372, 373];

/// Published without the padding that they are about: the same bytes as the valid case 357.
const WITHOUT_THEIR_FLAW: [u64; 2] = [367, 370];

#[test]
fn the_cases_of_wycheproof_are_judged_as_published() {
    let file: Value =
        serde_json::from_str(include_str!("../../../tests/vectors/wycheproof-jws.json")).expect("it is JSON");
    let (mut accepted, mut refused, mut unsupported) = (0, 0, 0);
    for group in file["groups"].as_array().expect("groups") {
        let key = &group["key"];
        let supported = matches!(key["alg"].as_str(), Some("HS256" | "RS256" | "ES256"));
        let verifier = by_key(key);
        assert!(verifier.is_some() || !supported, "{key}");
        for case in group["tests"].as_array().expect("tests") {
            let Some(token) = case["jws"].as_str() else { continue };
            let read =
                verifier.as_ref().is_some_and(|verifier| verifier.signed_payload(token.as_bytes()).is_ok());
            let id = case["id"].as_u64().expect("an id");
            let is_valid = case["result"] == "valid" || WITHOUT_THEIR_FLAW.contains(&id);
            let valid = is_valid && supported && !SKIPPED_CHARACTERS.contains(&id);
            assert_eq!(read, valid, "{case}");
            let counter = match (read, is_valid) {
                (true, _) => &mut accepted,
                (false, false) => &mut refused,
                (false, true) => &mut unsupported,
            };
            *counter += 1;
        }
    }
    println!(
        "{accepted} accepted, {refused} refused, {unsupported} valid under algorithms that are not supported"
    );
    assert_eq!(accepted + refused + unsupported, 401);
}

#[test]
fn fuzz_jwt() {
    let seeds = include_str!("../../../fuzz/jwt.seeds");
    let verifier = VerifierBuilder::new()
        .claim("sub")
        .secret(b"a secret of thirty-two characters")
        .issuer("us")
        .audience("api")
        .clock(ManualClock::default())
        .build()
        .expect("it has a key");
    let genuine = seeds.lines().filter(|line| verifier.verify(line.as_bytes()).is_ok()).count();
    assert_eq!(genuine, 1, "the seeds hold one valid token");
    Fuzz::new("jwt", seeds).tokens(&[".", "eyJhbGciOiJub25lIn0", "IUzI1NiJ9", "=", "e30"]).run(|token| {
        let read = verifier.verify(token);
        // Only the token itself is accepted, because nobody else can sign.
        assert!(
            read.is_err() || seeds.lines().any(|line| line.as_bytes() == token),
            "a forged token is accepted"
        );
        read
    });
}
