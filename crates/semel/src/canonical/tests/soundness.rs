//! Two texts have the same canonical form if and only if they are the same value.

use super::super::{CanonicalLimits, Canonicalizer, Exclusions};
use super::generate::{Random, Value};
use super::{canon, rounds};

struct Pairs {
    random: Random,
    canonicalizer: Canonicalizer,
    texts: [String; 2],
    forms: [Vec<u8>; 2],
}

impl Pairs {
    fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            canonicalizer: Canonicalizer::new(),
            texts: Default::default(),
            forms: Default::default(),
        }
    }

    /// Spells both values at random, and requires that their forms are equal exactly if the values are.
    fn check(&mut self, one: &Value, other: &Value) {
        for (index, value) in [one, other].into_iter().enumerate() {
            let (text, form) = (&mut self.texts[index], &mut self.forms[index]);
            text.clear();
            form.clear();
            value.spell(&mut self.random, text);
            let result = self.canonicalizer.write(
                text.as_bytes(),
                CanonicalLimits::DEFAULT,
                &Exclusions::none(),
                form,
            );
            assert_eq!(result, Ok(()), "{text}");
        }
        let [a, b] = &self.texts;
        assert_eq!(self.forms[0] == self.forms[1], one == other, "\n{a}\n{b}");
    }

    /// The canonical form of a canonical form is itself.
    fn check_again(&mut self) {
        let [form, again] = &mut self.forms;
        again.clear();
        self.canonicalizer.write(form, CanonicalLimits::DEFAULT, &Exclusions::none(), again).unwrap();
        assert_eq!(form, again, "{}", String::from_utf8_lossy(form));
    }
}

// One third of the pairs are two spellings of one value, one third a value and one with a small change, one third two
// small values that are equal by chance.
#[test]
fn equal_forms_mean_equal_values() {
    let mut pairs = Pairs::new(8785);
    let (mut equal, mut different) = (0, 0);
    let wanted = rounds(50_000, 2_000_000);
    while equal + different < wanted {
        let one = Value::nested(&mut pairs.random, 3);
        let changed = one.mutated(&mut pairs.random);
        let met = [Value::random(&mut pairs.random, 1), Value::random(&mut pairs.random, 1)];
        for (one, other) in [(&one, &one), (&one, &changed), (&met[0], &met[1])] {
            pairs.check(one, other);
            if one == other { equal += 1 } else { different += 1 }
        }
        pairs.check(&one, &one);
        pairs.check_again();
    }
    // If the generator made only one kind, the test would prove nothing.
    assert!(equal > wanted / 4 && different > wanted / 4, "{equal} equal, {different} different");
}

// A wide object, in order, in reverse and shuffled: the sort itself, beyond the needs of small objects.
#[test]
fn wide_objects_are_sorted() {
    let mut random = Random(17);
    let mut names: Vec<String> = (0..5000).map(|n| format!("\"name{}\":{n}", n * 7919 % 5000)).collect();
    let forms: Vec<String> = (0..4)
        .map(|round| {
            match round {
                0 => names.sort(),
                1 => names.reverse(),
                _ => (1..names.len()).rev().for_each(|last| names.swap(last, random.below(last + 1))),
            }
            canon(format!("{{{}}}", names.join(",")))
        })
        .collect();
    names.sort_by_key(|member| member.split(':').next().map(|name| name.trim_matches('"').to_owned()));
    assert_eq!(forms[0], format!("{{{}}}", names.join(",")));
    assert!(forms.iter().all(|form| *form == forms[0]));
}
