//! Every cell of the design's table: what each command does to a record in each phase.

use super::*;

/// One line a command, one column a situation; a cell is the ruling and, after `>`, the phase it leads to.
/// Without `>` the record has not changed in any field. Owner A was here first; `own` is its grant.
///
/// The situations: `none` the store knows nothing, `stub` released, `bound`, `claimed`, `begun`, `lapsed` (never
/// begun), `taken` (begun, `keyed`, lease over), `doubt` (begun, `marked`, lease over), `done`, `expired` (still
/// written as done), `shrunk` (swept), `over` (memory has ended).
const TABLE: &str = "
                    | none        | stub        | bound       | claimed     | begun       | lapsed      | taken       | doubt       | done        | expired     | shrunk      | over
claim B             | won>claimed | won>claimed | won>claimed | busy        | busy        | won>claimed | won>claimed | in doubt    | replay      | expired     | expired     | won>claimed
claim B begin       | won>begun   | won>begun   | won>begun   | busy        | busy        | won>begun   | won>begun   | in doubt    | replay      | expired     | expired     | won>begun
claim B other       | won>claimed | won>claimed | conflict    | conflict    | conflict    | conflict    | conflict    | conflict    | conflict    | expired     | expired     | won>claimed
claim A             | won>claimed | lost        | lost        | won>claimed | won>begun   | won>claimed | won>claimed | in doubt    | replay      | expired     | expired     | lost
claim A begin       | won>begun   | lost        | lost        | won>begun   | won>begun   | won>begun   | won>begun   | in doubt    | replay      | expired     | expired     | lost
claim A other       | won>claimed | lost        | conflict    | conflict    | conflict    | conflict    | conflict    | conflict    | conflict    | expired     | expired     | lost
begin own           | lost        | lost        | lost        | ok>begun    | ok>begun    | lost        | lost        | lost        | lost        | lost        | lost        | lost
renew own           | lost        | lost        | lost        | ok>claimed  | ok>begun    | lost        | lost        | lost        | lost        | lost        | lost        | lost
complete own        | lost        | lost        | lost        | ok>done     | ok>done     | ok>done     | ok>done     | ok>done     | lost, shown | lost        | lost        | lost
complete own again  | lost        | lost        | lost        | ok>done     | ok>done     | ok>done     | ok>done     | ok>done     | ok>done     | lost        | lost        | lost
release own         | lost        | lost        | lost        | ok>vacant   | ok>vacant   | ok>vacant   | ok>bound    | ok>vacant   | lost        | lost        | lost        | lost
bind own            | lost        | lost        | lost        | ok>bound    | ok>bound    | ok>bound    | ok>bound    | ok>bound    | lost        | lost        | lost        | lost
abandon own         | lost        | lost        | lost        | ok>lapsed   | ok>in doubt | ok>lapsed   | ok>lapsed   | ok>in doubt | lost        | lost        | lost        | lost
settle done         | refused     | refused     | refused     | refused     | refused     | refused     | refused     | ok>done     | refused     | refused     | refused     | refused
settle run          | refused     | refused     | refused     | refused     | refused     | refused     | refused     | ok>bound    | refused     | refused     | refused     | refused
forget              | refused     | ok>vacant   | ok>vacant   | refused     | refused     | refused     | refused     | refused     | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant
forget force        | refused     | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant
settle own done     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | ok>done     | refused     | refused     | refused     | refused
settle own run      | refused     | refused     | refused     | refused     | refused     | refused     | refused     | ok>bound    | refused     | refused     | refused     | refused
settle other done   | refused     | refused     | refused     | refused     | refused     | refused     | refused     | lost        | refused     | refused     | refused     | refused
settle other run    | refused     | refused     | refused     | refused     | refused     | refused     | refused     | lost        | refused     | refused     | refused     | refused
forget own          | refused     | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant   | ok>vacant
forget other        | refused     | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost        | lost
reexecute           | refused     | refused     | refused     | refused     | refused     | refused     | refused     | refused     | ok>bound    | ok>bound    | ok>bound    | refused
";

const SITUATIONS: usize = 12;

/// The situation of that name, and the grant that owner A holds or held in it.
fn situation(name: &str) -> (Slot, Grant) {
    let lease = Terms::default().lease;
    let over_with = |mut slot: Slot, by: Duration| {
        slot.pass(by);
        slot
    };
    let stands = Terms::default().retention + Terms::default().grace;
    match name {
        "none" => (Slot::new(Mode::Marked), Grant { owner: A, fence: Fence::new(START.as_micros()) }),
        "stub" | "bound" => {
            let (mut slot, grant) = Slot::begun(Mode::Marked, A);
            let command = if name == "stub" { Command::Release(grant) } else { Command::Bind(grant) };
            assert!(accepted(&slot.apply(&command)));
            (over_with(slot, SECOND), grant)
        }
        "claimed" | "lapsed" => {
            let mut slot = Slot::new(Mode::Marked);
            let grant = slot.win(A);
            (over_with(slot, if name == "lapsed" { lease } else { SECOND }), grant)
        }
        "begun" | "doubt" | "taken" => {
            let mode = if name == "taken" { Mode::Keyed } else { Mode::Marked };
            let (slot, grant) = Slot::begun(mode, A);
            (over_with(slot, if name == "begun" { SECOND } else { lease }), grant)
        }
        "done" | "expired" | "shrunk" | "over" => {
            let (mut slot, grant) = Slot::done(Mode::Marked, A);
            slot.pass(match name {
                "done" => SECOND,
                "over" => stands + Terms::default().memory,
                _ => stands,
            });
            if name == "shrunk" {
                slot.sweep();
                assert_eq!(slot.stored().state, State::Expired);
            }
            (slot, grant)
        }
        other => panic!("no situation is called {other}"),
    }
}

fn command(name: &str, grant: Grant, terms: Terms) -> Command {
    // The fence of an attempt before this one.
    let other = Fence::new(grant.fence.get() - 1);
    match name {
        "claim B" => claim(B, SAME, terms, Begin::Later),
        "claim B begin" => claim(B, SAME, terms, Begin::WithClaim),
        "claim B other" => claim(B, OTHER, terms, Begin::Later),
        "claim A" => claim(A, SAME, terms, Begin::Later),
        "claim A begin" => claim(A, SAME, terms, Begin::WithClaim),
        "claim A other" => claim(A, OTHER, terms, Begin::Later),
        "begin own" => Command::Begin(grant),
        "renew own" => Command::Renew(grant),
        "complete own" => complete(grant, "late"),
        "complete own again" => complete(grant, "done"),
        "release own" => Command::Release(grant),
        "bind own" => Command::Bind(grant),
        "abandon own" => Command::Abandon(grant),
        "settle done" => Command::Settle(Settlement::Done(outcome("settled"))),
        "settle run" => Command::Settle(Settlement::Run),
        "forget" => Command::Forget(Force::No),
        "forget force" => Command::Forget(Force::Yes),
        "settle own done" => Command::SettleAttempt(grant.fence, Settlement::Done(outcome("settled"))),
        "settle own run" => Command::SettleAttempt(grant.fence, Settlement::Run),
        "settle other done" => Command::SettleAttempt(other, Settlement::Done(outcome("settled"))),
        "settle other run" => Command::SettleAttempt(other, Settlement::Run),
        "forget own" => Command::Forget(Force::Attempt(grant.fence)),
        "forget other" => Command::Forget(Force::Attempt(other)),
        "reexecute" => Command::Reexecute,
        other => panic!("no command is called {other}"),
    }
}

fn word(ruling: &Ruling) -> &'static str {
    match ruling {
        Ruling::Won(_) => "won",
        Ruling::Busy { .. } => "busy",
        Ruling::Replay { .. } => "replay",
        Ruling::Conflict => "conflict",
        Ruling::InDoubt => "in doubt",
        Ruling::Expired => "expired",
        Ruling::Accepted { .. } => "ok",
        Ruling::Lost { winner: None } => "lost",
        Ruling::Lost { winner: Some(_) } => "lost, shown",
        Ruling::Refused { .. } => "refused",
    }
}

fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Vacant => "vacant",
        Phase::Bound => "bound",
        Phase::Claimed => "claimed",
        Phase::Begun => "begun",
        Phase::Lapsed => "lapsed",
        Phase::InDoubt => "in doubt",
        Phase::Done => "done",
        Phase::Expired => "expired",
    }
}

fn cells(line: &str) -> (&str, Vec<&str>) {
    let mut cells = line.split('|').map(str::trim);
    (cells.next().unwrap_or_default(), cells.collect())
}

#[test]
fn every_cell_of_the_table() {
    let mut lines = TABLE.lines().filter(|line| !line.is_empty());
    let (_, names) = cells(lines.next().unwrap());
    assert_eq!(names.len(), SITUATIONS);
    let mut checked = 0;
    for (row, wanted) in lines.map(cells) {
        assert_eq!(wanted.len(), SITUATIONS, "{row}");
        for (name, wanted) in names.iter().zip(wanted) {
            let (mut slot, grant) = situation(name);
            let before = slot.record.clone();
            let ruling = slot.apply(&command(row, grant, slot.terms));
            let taken = matches!(ruling, Ruling::Won(_) | Ruling::Accepted { .. });
            let got = match word(&ruling) {
                word if taken => format!("{word}>{}", phase_word(slot.phase())),
                word => word.to_owned(),
            };
            assert_eq!(got, wanted, "{row} on {name}");
            if !taken {
                assert_eq!(slot.record, before, "{row} on {name} was refused and changed the record");
            }
            if let Ruling::Refused { phase } = ruling {
                assert_eq!(phase, slot.phase(), "{row} on {name}");
            }
            let fences = |record: &Option<Record>| record.as_ref().map(|record| record.fence);
            assert!(fences(&slot.record) >= fences(&before), "{row} on {name} took the fence back");
            checked += 1;
        }
    }
    assert_eq!(checked, 24 * SITUATIONS);
}

// No command from an old fence changes anything, in any phase.
#[test]
fn no_grant_but_the_current_one_changes_anything() {
    let (_, names) = cells(TABLE.lines().nth(1).unwrap());
    for name in names {
        let (slot, own) = situation(name);
        let older = Grant { fence: Fence::new(own.fence.get() - 1), ..own };
        let newer = Grant { fence: Fence::new(own.fence.get() + 1), ..own };
        let foreign = Grant { owner: B, ..own };
        for grant in [older, newer, foreign] {
            for row in [
                "begin own",
                "renew own",
                "complete own",
                "complete own again",
                "release own",
                "bind own",
                "abandon own",
            ] {
                let mut slot = slot.clone();
                let before = slot.record.clone();
                let ruling = slot.apply(&command(row, grant, slot.terms));
                assert!(matches!(ruling, Ruling::Lost { .. }), "{row} of {grant:?} on {name}: {ruling:?}");
                assert_eq!(slot.record, before, "{row} of {grant:?} on {name}");
            }
        }
    }
}

#[test]
fn a_late_owner_is_shown_the_winners_outcome_never_its_own() {
    let (mut slot, late) = Slot::begun(Mode::Rerun, A);
    slot.pass(slot.terms.lease);
    let winner = slot.win(B);
    assert_eq!(slot.apply(&complete(late, "late")), LOST, "nothing to show yet");
    assert!(accepted(&slot.apply(&complete(winner, "winner"))));
    assert_eq!(slot.apply(&complete(late, "late")), lost_to("winner"));

    // Shown for the same payload only.
    let other_payload =
        Command::Complete { grant: late, fingerprint: OTHER, outcome: outcome("late"), retention: None };
    assert_eq!(slot.apply(&other_payload), LOST);
}

// An owner that paused for longer than its lease cannot start, with or without a successor.
#[test]
fn begin_after_the_lease_is_refused() {
    for mode in MODES {
        let mut slot = Slot::new(mode);
        let late = slot.win(A);
        slot.pass(slot.terms.lease);
        assert_eq!(slot.apply(&Command::Begin(late)), LOST);
        let winner = slot.win(B);
        assert_eq!(slot.apply(&Command::Begin(late)), LOST);
        assert!(winner.fence > late.fence, "a resource that compares fences refuses the late owner too");
    }
}

#[test]
fn a_late_owner_cannot_release_its_successor() {
    for mode in MODES {
        let mut slot = Slot::new(mode);
        let late = slot.win(A);
        slot.pass(slot.terms.lease);
        slot.win(B);
        for command in [Command::Release(late), Command::Bind(late), Command::Abandon(late)] {
            assert_eq!(slot.apply(&command), LOST, "{mode:?} {command:?}");
            assert_eq!((slot.stored().owner, slot.phase()), (B, Phase::Claimed));
        }
    }
}

// The same attempt gets its own claim back.
#[test]
fn a_repeated_claim_knows_itself() {
    let mut slot = Slot::new(Mode::Marked);
    let first = slot.claim(A);
    slot.pass(SECOND);
    let Ruling::Won(again) = slot.claim(A) else { panic!("the owner was not known") };
    assert_eq!(again.grant, won(&first));
    assert_eq!(
        (again.attempt, again.lease_left),
        (1, slot.terms.lease - SECOND),
        "the lease is not extended"
    );

    // The begin mark of a repeated claim counts, and a repeated claim without it does not remove it.
    let begin = claim(A, SAME, slot.terms, Begin::WithClaim);
    assert_eq!(won(&slot.apply(&begin)), again.grant);
    assert_eq!(slot.phase(), Phase::Begun);
    assert_eq!(won(&slot.claim(A)), again.grant);
    assert_eq!(slot.phase(), Phase::Begun);
}

// Complete is repeatable for the same grant and outcome.
#[test]
fn complete_is_repeatable_and_never_overwrites() {
    let (mut slot, grant) = Slot::done(Mode::Marked, A);
    let before = slot.record.clone();
    slot.pass(SECOND);
    assert!(accepted(&slot.apply(&complete(grant, "done"))));
    assert_eq!(slot.record, before, "retention still counts from the first complete");
    assert_eq!(slot.apply(&complete(grant, "changed my mind")), lost_to("done"));
    assert_eq!(slot.record, before);
}

#[test]
fn the_payload_is_compared_from_the_first_moment() {
    let mut slot = Slot::new(Mode::Marked);
    slot.win(A);
    let other = claim(B, OTHER, slot.terms, Begin::Later);
    assert_eq!(slot.apply(&other), Ruling::Conflict);
    slot.pass(slot.terms.lease);
    assert_eq!(slot.apply(&other), Ruling::Conflict, "a lapsed claim still stands for its payload");
    slot.pass(slot.terms.retention);
    assert_eq!(slot.apply(&other), Ruling::Expired, "and is then remembered");
    slot.pass(slot.terms.memory);
    won(&slot.apply(&other));
    assert_eq!(slot.stored().fingerprint, OTHER);
}

#[test]
fn a_lost_owner_by_mode() {
    for mode in MODES {
        let (mut slot, late) = Slot::begun(mode, A);
        slot.pass(slot.terms.lease);
        let ruling = slot.claim(B);
        if mode == Mode::Marked {
            assert_eq!(ruling, Ruling::InDoubt);
            // It came back: still the current fence.
            assert!(accepted(&slot.apply(&complete(late, "it happened"))));
            assert_eq!(slot.stored().outcome(slot.now), Some(&outcome("it happened")));
        } else {
            let Ruling::Won(win) = ruling else { panic!("{mode:?} is taken over, not {ruling:?}") };
            assert_eq!(win.attempt, 2);
            assert!(win.grant.fence > late.fence);
            assert_eq!(slot.apply(&complete(late, "late")), LOST);
        }
    }
}

#[test]
fn a_record_in_doubt_stays_so_under_any_mode_of_the_claimer() {
    let (mut slot, _) = Slot::begun(Mode::Marked, A);
    slot.pass(DAY * 365);
    for mode in MODES {
        let command = claim(B, SAME, Terms { mode, ..slot.terms }, Begin::WithClaim);
        assert_eq!(slot.apply(&command), Ruling::InDoubt, "{mode:?}");
    }
}

// Never begun, so nothing can have happened.
#[test]
fn a_claim_that_never_began_is_taken_over_in_every_mode() {
    for mode in MODES {
        let mut slot = Slot::new(mode);
        let late = slot.win(A);
        slot.pass(slot.terms.lease);
        assert_eq!(slot.phase(), Phase::Lapsed);
        let Ruling::Won(win) = slot.claim(B) else { panic!("not taken over in {mode:?}") };
        assert_eq!(win.attempt, 2);
        assert!(win.grant.fence > late.fence);
    }
}

#[test]
fn release_frees_the_payload_and_bind_keeps_it() {
    for mode in MODES {
        for (command, keeps) in [
            (Command::Release as fn(Grant) -> Command, mode == Mode::Keyed),
            (Command::Bind as fn(Grant) -> Command, true),
        ] {
            let (mut slot, grant) = Slot::begun(mode, A);
            assert!(accepted(&slot.apply(&command(grant))));
            assert_eq!(slot.phase(), if keeps { Phase::Bound } else { Phase::Vacant });
            assert_eq!(slot.apply(&command(grant)), LOST, "the grant is gone with it");

            let other = slot.apply(&claim(B, OTHER, slot.terms, Begin::Later));
            if keeps {
                assert_eq!(other, Ruling::Conflict);
                let Ruling::Won(win) = slot.claim(C) else { panic!("bound is free for its payload") };
                assert_eq!(win.attempt, 2, "the life goes on");
            } else {
                let Ruling::Won(win) = other else { panic!("vacant is free for any payload") };
                assert_eq!(win.attempt, 1, "a new life");
            }
        }
    }
}

#[test]
fn bound_lasts_for_the_retention() {
    let (mut slot, grant) = Slot::begun(Mode::Keyed, A);
    assert!(accepted(&slot.apply(&Command::Release(grant))));
    let other = claim(B, OTHER, slot.terms, Begin::Later);
    slot.pass(slot.terms.retention - Duration::from_micros(1));
    assert_eq!(slot.apply(&other), Ruling::Conflict);
    slot.pass(Duration::from_micros(1));
    won(&slot.apply(&other));
}

// A handler that panicked, timed out or was cancelled does not know the result: the lease ends immediately.
#[test]
fn abandoned() {
    for mode in MODES {
        let (mut slot, grant) = Slot::begun(mode, A);
        assert!(accepted(&slot.apply(&Command::Abandon(grant))));
        match mode {
            Mode::Marked => assert_eq!(slot.claim(B), Ruling::InDoubt),
            Mode::Atomic | Mode::Keyed | Mode::Rerun => assert_ne!(slot.win(B), grant),
        }
    }
    let mut slot = Slot::new(Mode::Marked);
    let grant = slot.win(A);
    assert!(accepted(&slot.apply(&Command::Abandon(grant))));
    assert_eq!(slot.phase(), Phase::Lapsed, "never begun: nothing to doubt");
    assert_eq!(slot.apply(&Command::Begin(grant)), LOST);

    // Abandon after the lease does not lengthen it.
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    slot.pass(HOUR);
    let before = slot.record.clone();
    assert!(accepted(&slot.apply(&Command::Abandon(grant))));
    assert_eq!(slot.record, before);
}

// A packet that arrives after its owner has ended its claim.
#[test]
fn a_stub_refuses_the_late_claim_packet_of_its_owner() {
    let enders: [fn(&mut Slot, Grant) -> Ruling; 5] = [
        |slot, grant| slot.apply(&Command::Release(grant)),
        |slot, grant| slot.apply(&Command::Bind(grant)),
        |slot, _| slot.apply(&Command::Forget(Force::Yes)),
        |slot, _| {
            slot.pass(slot.terms.lease);
            slot.apply(&Command::Settle(Settlement::Run))
        },
        |slot, grant| {
            assert!(accepted(&slot.apply(&complete(grant, "done"))));
            slot.apply(&Command::Reexecute)
        },
    ];
    for (number, end) in enders.into_iter().enumerate() {
        let (mut slot, grant) = Slot::begun(Mode::Marked, A);
        assert!(accepted(&end(&mut slot, grant)), "{number}");
        let ended = slot.now;
        let longest = slot.terms.in_flight_max + slot.terms.lease;
        for later in [Duration::ZERO, SECOND, longest - Duration::from_micros(1)] {
            slot.now = ended.after(later);
            slot.sweep();
            assert_eq!(slot.claim(A), LOST, "{number}, {later:?} later");
        }
        // Any other owner may.
        assert!(slot.win(B).fence > grant.fence);
    }
}
