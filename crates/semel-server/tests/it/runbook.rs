//! `semel runbook`.

use serde_json::Value;

use crate::kit::semel;

// Readable where none of the secrets are, and never with one.
#[test]
fn the_runbook_is_printed_without_any_secret() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("semel.toml");
    let example = semel().args(["config", "example"]).output().unwrap();
    let further = "\n[[downstream]]\nname = \"ledger\"\npattern = \"claim-first\"\n";
    std::fs::write(&file, [example.stdout.as_slice(), further.as_bytes()].concat()).unwrap();
    let path = file.display().to_string();
    let printed = |args: &[&str]| {
        let output = semel()
            .args(["runbook", "--config", &path])
            .args(args)
            .env("ACQUIRER_KEY", "hunter2-hunter2-hunter2")
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("hunter2"));
        text
    };
    let text = printed(&[]);
    assert!(text.contains("acquirer") && text.contains("derived-key") && text.contains("own"), "{text}");
    assert!(text.contains("ledger") && text.contains("claim-first"), "{text}");
    let json: Value = serde_json::from_str(&printed(&["--json"])).unwrap();
    assert_eq!(json["downstreams"][0]["name"], "acquirer");
    assert_eq!(json["downstreams"][1]["pattern"], "claim-first");
}

#[test]
fn a_runbook_without_downstreams_says_so() {
    let output = semel().arg("runbook").output().unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("[[downstream]]"));
}
