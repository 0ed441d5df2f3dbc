//! Locks of the standard library, for the crates that are loaded into other programs.
//!
//! Those keep the standard library's locks: each is one word, which nothing outside of it knows. `parking_lot`, which the
//! other crates use, has one table of waiters for the whole process: a child of `fork` inherits it as another thread held
//! it, and waiting there allocates memory, which a signal handler may not do.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks, even after a thread panicked with the lock: what the lock guards is changed in single steps.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], to read together with others.
pub fn lock_shared<T: ?Sized>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`lock`], with a lock that others may only read through.
pub fn lock_exclusive<T: ?Sized>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_after_a_panic() {
        let (mutex, shared) = (Mutex::new(1), RwLock::new(2));
        let panicked = std::panic::catch_unwind(|| {
            let _both = (lock(&mutex), lock_exclusive(&shared));
            panic!("with both locks");
        });
        assert!(panicked.is_err() && mutex.is_poisoned() && shared.is_poisoned());
        *lock_exclusive(&shared) += *lock(&mutex);
        assert_eq!(*lock_shared(&shared), 3);
    }
}
