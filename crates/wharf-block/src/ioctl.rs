//! The calls that rustix has no safe name for, and the only unsafe code of this crate.
//!
//! Each function is one call of the kernel. The structures are those of `linux/loop.h`; they consist
//! of integers and arrays of them without padding, so that every value of their bytes is a value.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::{
    io,
    ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl},
};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
/// `XFS_IOC_GOINGDOWN`; ext4 took over the same number.
const FS_IOC_SHUTDOWN: Opcode = 0x8004_587D;
const FITHAW: Opcode = 0xC004_5878;

/// Neither the log nor anything else is written any more.
const SHUTDOWN_WITHOUT_LOG_FLUSH: u32 = 2;

pub(crate) const LO_FLAGS_READ_ONLY: u32 = 1;
pub(crate) const LO_FLAGS_DIRECT_IO: u32 = 16;

pub(crate) const LO_NAME_SIZE: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopInfo {
    pub device: u64,
    pub inode: u64,
    pub rdevice: u64,
    pub offset: u64,
    pub size_limit: u64,
    pub number: u32,
    pub encrypt_type: u32,
    pub encrypt_key_size: u32,
    pub flags: u32,
    pub file_name: [u8; LO_NAME_SIZE],
    pub crypt_name: [u8; LO_NAME_SIZE],
    pub encrypt_key: [u8; 32],
    pub init: [u64; 2],
}

impl LoopInfo {
    pub(crate) fn new(flags: u32, file_name: [u8; LO_NAME_SIZE]) -> Self {
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name,
            crypt_name: [0; LO_NAME_SIZE],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoopConfig {
    pub fd: u32,
    pub block_size: u32,
    pub info: LoopInfo,
    pub reserved: [u64; 8],
}

/// A call without argument whose answer is its return value.
struct Answer<const OPCODE: Opcode>;

// SAFETY: nothing is read or written through the pointer, which is null.
unsafe impl<const OPCODE: Opcode> Ioctl for Answer<OPCODE> {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> io::Result<Self::Output> {
        Ok(output)
    }
}

/// The number of a loop device that nobody uses at this moment; makes one if need be.
pub(crate) fn loop_get_free(control: impl AsFd) -> io::Result<i32> {
    // SAFETY: the call takes no argument.
    unsafe { ioctl(control, Answer::<LOOP_CTL_GET_FREE>) }
}

pub(crate) fn loop_configure(device: impl AsFd, config: LoopConfig) -> io::Result<()> {
    // SAFETY: the call reads one `struct loop_config`, which LoopConfig is.
    unsafe { ioctl(device, Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

pub(crate) fn loop_get_status(device: impl AsFd) -> io::Result<LoopInfo> {
    // SAFETY: the call writes one `struct loop_info64`, which LoopInfo is.
    unsafe { ioctl(device, Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }
}

pub(crate) fn loop_set_status(device: impl AsFd, info: LoopInfo) -> io::Result<()> {
    // SAFETY: the call reads one `struct loop_info64`, which LoopInfo is.
    unsafe { ioctl(device, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) }
}

/// Makes the device as large as its file is now.
pub(crate) fn loop_set_capacity(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_SET_CAPACITY>::new()) }
}

/// Lets go of the file, at once or when the last user closes the device.
pub(crate) fn loop_clear(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    unsafe { ioctl(device, NoArg::<LOOP_CLR_FD>::new()) }
}

/// Ends all writing of the file system that `root` lies on.
pub(crate) fn shutdown(root: impl AsFd) -> io::Result<()> {
    // SAFETY: the call reads one 32-bit number.
    unsafe { ioctl(root, Setter::<FS_IOC_SHUTDOWN, u32>::new(SHUTDOWN_WITHOUT_LOG_FLUSH)) }
}

/// Lets those go on who wait for the file system that `root` lies on, because somebody has frozen it.
pub(crate) fn thaw(root: impl AsFd) -> io::Result<()> {
    // SAFETY: the kernel does not look at the argument.
    unsafe { ioctl(root, Setter::<FITHAW, u32>::new(0)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!(size_of::<LoopInfo>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
