//! Commands of a probe or a person: settle, forget, re-execute.

use super::*;

fn in_doubt() -> (Slot, Grant) {
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    slot.pass(slot.terms.lease);
    assert_eq!(slot.phase(), Phase::InDoubt);
    (slot, grant)
}

#[test]
fn settled_as_done() {
    let (mut slot, grant) = in_doubt();
    assert!(accepted(&slot.apply(&Command::Settle(Settlement::Done(outcome("seen"))))));
    assert!(slot.stored().fence > grant.fence);
    assert_eq!(slot.stored().expires_at, slot.now.after(slot.terms.retention + slot.terms.grace));
    // The owner that comes back answers with the settled outcome, even if it has the same bytes.
    assert_eq!(slot.apply(&complete(grant, "mine")), lost_to("seen"));
    assert_eq!(slot.apply(&complete(grant, "seen")), lost_to("seen"));
    assert!(matches!(slot.claim(B), Ruling::Replay { .. }));
    assert_eq!(slot.apply(&Command::Settle(Settlement::Run)), Ruling::Refused { phase: Phase::Done });
}

#[test]
fn settled_to_run() {
    let (mut slot, grant) = in_doubt();
    assert!(accepted(&slot.apply(&Command::Settle(Settlement::Run))));
    let settled = slot.stored().fence;
    assert!(settled > grant.fence);
    for command in
        [Command::Begin(grant), Command::Renew(grant), complete(grant, "late"), Command::Release(grant)]
    {
        assert_eq!(slot.apply(&command), LOST, "{command:?}");
    }
    assert_eq!(
        slot.apply(&claim(B, OTHER, slot.terms, Begin::Later)),
        Ruling::Conflict,
        "the same payload only"
    );
    let Ruling::Won(win) = slot.claim(B) else { panic!("the payload may run again") };
    assert!(win.grant.fence > settled);
    assert_eq!((win.attempt, win.epoch), (2, Epoch::default()));
}

#[test]
fn an_owner_that_comes_back_ends_the_doubt() {
    let (slot, grant) = in_doubt();
    for (command, phase) in [
        (complete(grant, "it happened"), Phase::Done),
        (Command::Release(grant), Phase::Vacant),
        (Command::Bind(grant), Phase::Bound),
    ] {
        let mut slot = slot.clone();
        assert!(accepted(&slot.apply(&command)));
        assert_eq!(slot.phase(), phase);
    }
}

#[test]
fn forget_keeps_the_fence_and_shuts_out_the_owner() {
    for force in [Force::No, Force::Yes] {
        let (mut slot, grant) = Slot::done(Mode::Marked, A);
        assert!(accepted(&slot.apply(&Command::Forget(force))));
        assert_eq!((slot.stored().fence, slot.phase()), (grant.fence, Phase::Vacant));
        assert_eq!(slot.apply(&complete(grant, "done")), LOST);
        assert!(slot.win(B).fence > grant.fence);
    }
    // With force also under a running owner, whose writes are then refused.
    let (mut slot, grant) = Slot::begun(Mode::Marked, A);
    assert_eq!(slot.apply(&Command::Forget(Force::No)), Ruling::Refused { phase: Phase::Begun });
    assert!(accepted(&slot.apply(&Command::Forget(Force::Yes))));
    for command in
        [Command::Begin(grant), Command::Renew(grant), complete(grant, "late"), Command::Release(grant)]
    {
        assert_eq!(slot.apply(&command), LOST, "{command:?}");
    }
    // A later life may have another payload.
    won(&slot.apply(&claim(B, OTHER, slot.terms, Begin::Later)));
}

#[test]
fn forget_without_force_is_refused_where_an_effect_may_be_under_way() {
    let (doubt, _) = in_doubt();
    let (mut lapsed, _) = Slot::begun(Mode::Keyed, A);
    lapsed.pass(lapsed.terms.lease);
    for (mut slot, phase) in [(doubt, Phase::InDoubt), (lapsed, Phase::Lapsed)] {
        assert_eq!(slot.apply(&Command::Forget(Force::No)), Ruling::Refused { phase });
        assert!(accepted(&slot.apply(&Command::Forget(Force::Yes))));
    }
}

#[test]
fn reexecute_is_a_new_epoch_for_the_same_payload() {
    let (mut slot, grant) = Slot::done(Mode::Keyed, A);
    for epoch in 1..=3_u8 {
        assert!(accepted(&slot.apply(&Command::Reexecute)));
        assert!(slot.stored().fence > grant.fence);
        assert_eq!(
            slot.apply(&complete(grant, "done")),
            LOST,
            "the outcome of the last epoch stands no more"
        );
        assert_eq!(slot.apply(&claim(C, OTHER, slot.terms, Begin::Later)), Ruling::Conflict);
        let owner = Owner::from_bytes([epoch; 16]);
        let Ruling::Won(win) = slot.claim(owner) else { panic!("the new epoch was not won") };
        assert_eq!(win.epoch, Epoch::new(u32::from(epoch)));
        assert!(accepted(&slot.apply(&complete(win.grant, "again"))));
    }
    // The epoch outlives the record's life: a derived key is never used twice.
    slot.pass(slot.terms.retention + slot.terms.grace + slot.terms.memory);
    let Ruling::Won(win) = slot.claim(A) else { panic!("memory has ended") };
    assert_eq!((win.epoch, win.attempt), (Epoch::new(3), 1));
}
