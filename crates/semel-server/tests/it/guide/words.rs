//! The pages are in plain English.

use super::pages::pages;

/// Words for which the field has better ones.
const WORDS: [&str; 8] =
    ["whoever", "anew", "under way", "so many", "is away", "comes and goes", "goes and comes", "come and go"];

#[test]
fn pages_use_the_words_of_the_field() {
    let mut found = Vec::new();
    for page in pages() {
        for line in page.prose() {
            // Names in code are what they are.
            let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase();
            let words = WORDS.iter().filter(|word| text.contains(*word));
            found.extend(words.map(|word| format!("{}: {word}: {line}", page.path)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
