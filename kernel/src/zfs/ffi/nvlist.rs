//! Name-value lists (`sys/nvpair.h`).

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use nix::errno::Errno;

use super::{Libraries, functions, text};

functions!(Functions {
    fn nvlist_alloc(*mut *mut c_void, c_uint, c_int) -> c_int;
    fn nvlist_free(*mut c_void);
    fn nvlist_add_boolean(*mut c_void, *const c_char) -> c_int;
    fn nvlist_add_uint64(*mut c_void, *const c_char, u64) -> c_int;
    fn nvlist_add_string(*mut c_void, *const c_char, *const c_char) -> c_int;
    fn nvlist_next_nvpair(*mut c_void, *const c_void) -> *mut c_void;
    fn nvpair_name(*const c_void) -> *const c_char;
    fn nvpair_type(*const c_void) -> c_int;
    fn nvpair_value_int32(*const c_void, *mut i32) -> c_int;
    fn nvpair_value_int64(*const c_void, *mut i64) -> c_int;
    fn nvpair_value_uint64(*const c_void, *mut u64) -> c_int;
    fn nvpair_value_uint64_array(*const c_void, *mut *mut u64, *mut c_uint) -> c_int;
    fn nvpair_value_string(*const c_void, *mut *const c_char) -> c_int;
    fn nvpair_value_nvlist(*const c_void, *mut *mut c_void) -> c_int;
    fn nvpair_value_nvlist_array(*const c_void, *mut *mut *mut c_void, *mut c_uint) -> c_int;
});

/// `NV_UNIQUE_NAME`: adding a name again replaces it.
const NV_UNIQUE_NAME: c_uint = 1;

/// `data_type_t`.
const DATA_TYPE_INT32: c_int = 5;
const DATA_TYPE_INT64: c_int = 7;
const DATA_TYPE_UINT64: c_int = 8;
const DATA_TYPE_STRING: c_int = 9;
const DATA_TYPE_UINT64_ARRAY: c_int = 16;
const DATA_TYPE_NVLIST: c_int = 19;
const DATA_TYPE_NVLIST_ARRAY: c_int = 20;

/// A list of our own.
pub(in crate::zfs) struct NvList {
    libraries: &'static Libraries,
    raw: NonNull<c_void>,
}

impl NvList {
    pub(in crate::zfs) fn new(libraries: &'static Libraries) -> Result<Self, Errno> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes the new list to the pointer.
        let code = unsafe { (libraries.nv.nvlist_alloc)(&raw mut raw, NV_UNIQUE_NAME, 0) };
        match NonNull::new(raw) {
            Some(raw) if code == 0 => Ok(Self { libraries, raw }),
            _ => Err(Errno::from_raw(if code == 0 {
                nix::libc::ENOMEM
            } else {
                code
            })),
        }
    }

    /// A list that a call gave away; `None` when it gave none.
    ///
    /// # Safety
    ///
    /// `raw` is null, or a list that nothing else uses or frees.
    pub(super) unsafe fn from_raw(libraries: &'static Libraries, raw: *mut c_void) -> Option<Self> {
        NonNull::new(raw).map(|raw| Self { libraries, raw })
    }

    pub(in crate::zfs) fn as_ref(&self) -> NvRef<'_> {
        // SAFETY: the list is live, and changes only by what borrows it mutably.
        unsafe { NvRef::new(self.libraries, self.raw) }
    }

    /// A name with no value.
    pub(in crate::zfs) fn add_name(&mut self, name: &CStr) -> Result<(), Errno> {
        // SAFETY: the list is live; the name is copied.
        done(unsafe { (self.libraries.nv.nvlist_add_boolean)(self.raw.as_ptr(), name.as_ptr()) })
    }

    pub(in crate::zfs) fn add_u64(&mut self, name: &CStr, value: u64) -> Result<(), Errno> {
        // SAFETY: the list is live; the name is copied.
        done(unsafe {
            (self.libraries.nv.nvlist_add_uint64)(self.raw.as_ptr(), name.as_ptr(), value)
        })
    }

    pub(in crate::zfs) fn add_string(&mut self, name: &CStr, value: &CStr) -> Result<(), Errno> {
        // SAFETY: the list is live; name and value are copied.
        done(unsafe {
            (self.libraries.nv.nvlist_add_string)(self.raw.as_ptr(), name.as_ptr(), value.as_ptr())
        })
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut c_void {
        self.raw.as_ptr()
    }
}

impl Drop for NvList {
    fn drop(&mut self) {
        // SAFETY: the list is live and not used after this.
        unsafe { (self.libraries.nv.nvlist_free)(self.raw.as_ptr()) };
    }
}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 {
        Ok(())
    } else {
        Err(Errno::from_raw(code))
    }
}

/// A value of one of the types that are read here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::zfs) enum Value<L> {
    I32(i32),
    I64(i64),
    U64(u64),
    Text(String),
    List(L),
    Numbers(Vec<u64>),
    Lists(Vec<L>),
    Other,
}

/// A list that belongs to something else, which lives for `'a`.
#[derive(Clone, Copy)]
pub(in crate::zfs) struct NvRef<'a> {
    libraries: &'static Libraries,
    raw: NonNull<c_void>,
    owner: PhantomData<&'a ()>,
}

impl<'a> NvRef<'a> {
    /// # Safety
    ///
    /// `raw` is a list that stays as it is for `'a`.
    pub(super) unsafe fn new(libraries: &'static Libraries, raw: NonNull<c_void>) -> Self {
        Self {
            libraries,
            raw,
            owner: PhantomData,
        }
    }

    /// The first pair of this name.
    pub(in crate::zfs) fn get(self, name: &str) -> Option<Value<NvRef<'a>>> {
        self.pairs()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value)
    }

    /// Names and values, in order.
    pub(in crate::zfs) fn pairs(self) -> impl Iterator<Item = (String, Value<NvRef<'a>>)> {
        let nv = &self.libraries.nv;
        let mut pair = std::ptr::null();
        std::iter::from_fn(move || {
            // SAFETY: the list is live and unchanged, the pair is null or one of its own.
            pair = unsafe { (nv.nvlist_next_nvpair)(self.raw.as_ptr(), pair) };
            if pair.is_null() {
                return None;
            }
            // SAFETY: the pair is live.
            let name = unsafe { (nv.nvpair_name)(pair) };
            Some((text(name).unwrap_or_default(), self.value(pair)))
        })
    }

    fn value(self, pair: *const c_void) -> Value<NvRef<'a>> {
        let nv = &self.libraries.nv;
        // SAFETY: the pair is live.
        let value = match unsafe { (nv.nvpair_type)(pair) } {
            DATA_TYPE_INT32 => number(nv.nvpair_value_int32, pair).map(Value::I32),
            DATA_TYPE_INT64 => number(nv.nvpair_value_int64, pair).map(Value::I64),
            DATA_TYPE_UINT64 => number(nv.nvpair_value_uint64, pair).map(Value::U64),
            DATA_TYPE_STRING => self.string(pair).map(Value::Text),
            DATA_TYPE_UINT64_ARRAY => self.numbers(pair).map(Value::Numbers),
            DATA_TYPE_NVLIST => self.list(pair).map(Value::List),
            DATA_TYPE_NVLIST_ARRAY => self.lists(pair).map(Value::Lists),
            _ => None,
        };
        value.unwrap_or(Value::Other)
    }

    fn string(self, pair: *const c_void) -> Option<String> {
        let mut string = std::ptr::null();
        // SAFETY: the pair is live and of this type; the string is part of it.
        let code = unsafe { (self.libraries.nv.nvpair_value_string)(pair, &raw mut string) };
        text(string).filter(|_| code == 0)
    }

    fn list(self, pair: *const c_void) -> Option<NvRef<'a>> {
        let mut list = std::ptr::null_mut();
        // SAFETY: the pair is live and of this type; the list is part of it.
        let code = unsafe { (self.libraries.nv.nvpair_value_nvlist)(pair, &raw mut list) };
        let list = NonNull::new(list).filter(|_| code == 0)?;
        // SAFETY: it lives as long as the list that it is in.
        Some(unsafe { NvRef::new(self.libraries, list) })
    }

    fn numbers(self, pair: *const c_void) -> Option<Vec<u64>> {
        let (mut first, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the pair is live and of this type; the numbers are part of it.
        let code = unsafe {
            (self.libraries.nv.nvpair_value_uint64_array)(pair, &raw mut first, &raw mut count)
        };
        if code != 0 || first.is_null() {
            return None;
        }
        // SAFETY: so many are there, aligned, and they stay while they are copied.
        Some(unsafe { std::slice::from_raw_parts(first, count as usize) }.to_vec())
    }

    fn lists(self, pair: *const c_void) -> Option<Vec<NvRef<'a>>> {
        let (mut first, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the pair is live and of this type; the lists are part of it.
        let code = unsafe {
            (self.libraries.nv.nvpair_value_nvlist_array)(pair, &raw mut first, &raw mut count)
        };
        if code != 0 || first.is_null() {
            return None;
        }
        // SAFETY: so many pointers are there, aligned, and they stay while they are copied.
        let pointers = unsafe { std::slice::from_raw_parts(first, count as usize) };
        pointers
            .iter()
            .map(|&list| {
                // SAFETY: it lives as long as the list that it is in.
                NonNull::new(list).map(|list| unsafe { NvRef::new(self.libraries, list) })
            })
            .collect()
    }
}

fn number<T: Default>(
    read: unsafe extern "C" fn(*const c_void, *mut T) -> c_int,
    pair: *const c_void,
) -> Option<T> {
    let mut number = T::default();
    // SAFETY: the pair is live and of the type that `read` is for, which its caller has seen.
    let code = unsafe { read(pair, &raw mut number) };
    (code == 0).then_some(number)
}
