//! The memory that mapped files take, for all users and for each.

use forebay_model::Uid;
use std::collections::BTreeMap;

/// Bytes that count against the capacity.
#[derive(Default)]
pub(super) struct Usage {
    bytes: u64,
    users: BTreeMap<Uid, u64>,
    /// Largest share of one user in per cent, and the user who is exempt besides root.
    bound: Option<(u8, Uid)>,
}

/// The bytes of one object, by the user for whom they count.
#[derive(Default)]
pub(super) struct Charge(BTreeMap<Uid, u64>);

impl Charge {
    fn bytes(&self) -> u64 {
        self.0.values().sum()
    }
}

/// The bound that bytes do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Full {
    /// That of all users.
    All,
    /// That of one user.
    User,
}

impl Usage {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn bound_users(&mut self, percent: u8, exempt: Uid) {
        self.bound = Some((percent.min(100), exempt));
    }

    /// Sets how many bytes an object has; those that are new count for `user`.
    pub(super) fn set(
        &mut self,
        charge: &mut Charge,
        bytes: u64,
        user: Uid,
        capacity: u64,
    ) -> Result<(), Full> {
        let before = charge.bytes();
        let Some(more) = bytes.checked_sub(before).filter(|more| *more > 0) else {
            self.release(charge, before - bytes);
            return Ok(());
        };
        if self.bytes.saturating_add(more) > capacity {
            return Err(Full::All);
        }
        let held = self.users.get(&user).copied().unwrap_or(0);
        if let Some((percent, exempt)) = self.bound
            && user != exempt
            && user != Uid(0)
            && u128::from(held.saturating_add(more)) * 100 > u128::from(capacity) * u128::from(percent)
        {
            return Err(Full::User);
        }
        self.add(charge, more, user);
        Ok(())
    }

    /// Counts the bytes of an object that is there already.
    pub(super) fn add(&mut self, charge: &mut Charge, bytes: u64, user: Uid) {
        self.bytes += bytes;
        *self.users.entry(user).or_default() += bytes;
        *charge.0.entry(user).or_default() += bytes;
    }

    fn release(&mut self, charge: &mut Charge, mut bytes: u64) {
        for (user, charged) in &mut charge.0 {
            let less = bytes.min(*charged);
            bytes -= less;
            *charged -= less;
            self.bytes -= less;
            if let Some(held) = self.users.get_mut(user) {
                *held -= less;
            }
        }
        charge.0.retain(|_, charged| *charged > 0);
        self.users.retain(|_, held| *held > 0);
    }

    /// The object is gone.
    pub(super) fn release_all(&mut self, charge: &mut Charge) {
        let bytes = charge.bytes();
        self.release(charge, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_bytes_count_for_the_users_who_map_them() {
        let (alice, bob, owner) = (Uid(1), Uid(2), Uid(3));
        let (mut usage, mut first, mut second) = (Usage::default(), Charge::default(), Charge::default());
        usage.bound_users(50, owner);
        usage.set(&mut first, 300, alice, 1000).unwrap();
        usage.set(&mut first, 500, bob, 1000).unwrap();
        assert_eq!(usage.set(&mut second, 201, alice, 1000), Err(Full::User));
        usage.set(&mut second, 200, alice, 1000).unwrap();
        usage.set(&mut second, 1000 - 500, owner, 1000).unwrap();
        assert_eq!(usage.set(&mut second, 501, owner, 1000), Err(Full::All));
        usage.set(&mut first, 0, owner, 1000).unwrap();
        usage.set(&mut first, 300, bob, 1000).unwrap();
        usage.release_all(&mut second);
        assert_eq!(usage.bytes(), 300);
        usage.release_all(&mut first);
        assert!(usage.bytes() == 0 && usage.users.is_empty());
    }
}
