//! Damaged records.

use semel_testbed::fuzz::Fuzz;

use crate::record::Record;

#[test]
fn fuzz_record_bytes() {
    let fuzz = Fuzz::new("record_bytes", include_str!("../../../fuzz/record_bytes.seeds"));
    fuzz.run(|input| {
        let record = Record::decode(input).map_err(|error| error.to_string())?;
        let again = Record::decode(&record.encode()).expect("what is written can be read");
        assert_eq!(again, record);
        Ok::<_, String>(format!("{:?}", std::mem::discriminant(&record.state)))
    });
}
