// What Wine 8 lacks and kith.exe needs, as the DLL that Go's runtime loads first.
#include <windows.h>
#include <winternl.h>

BOOLEAN WINAPI SystemFunction036(PVOID, ULONG); // RtlGenRandom

// Go's runtime reads its random bytes from ProcessPrng.
__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size) {
    return SystemFunction036(data, (ULONG)size);
}

// Wine has each new instance of a pipe listen. On Windows the one that is opened for
// SYNCHRONIZE alone does not; go-winio holds such an instance, so that the pipe's name stays
// its own, and would never see the first client. A client that connects and leaves takes it
// away. Wine also takes each type of a pipe for that of messages.
typedef NTSTATUS(NTAPI *create_pipe)(PHANDLE, ULONG, POBJECT_ATTRIBUTES, PIO_STATUS_BLOCK, ULONG, ULONG, ULONG,
                                     ULONG, ULONG, ULONG, ULONG, ULONG, ULONG, PLARGE_INTEGER);
static create_pipe original;

static NTSTATUS NTAPI create(PHANDLE pipe, ULONG access, POBJECT_ATTRIBUTES name, PIO_STATUS_BLOCK io, ULONG share,
                             ULONG disposition, ULONG options, ULONG type, ULONG mode, ULONG completion,
                             ULONG instances, ULONG in, ULONG out, PLARGE_INTEGER timeout) {
    NTSTATUS status = original(pipe, access, name, io, share, disposition, options, type & 1, mode, completion,
                               instances, in, out, timeout);
    if (status == 0 && access == SYNCHRONIZE) {
        OBJECT_ATTRIBUTES client = *name;
        HANDLE handle;
        IO_STATUS_BLOCK ignored;
        client.SecurityDescriptor = NULL;
        if (NtOpenFile(&handle, GENERIC_READ | SYNCHRONIZE, &client, &ignored, 0, 0) == 0) NtClose(handle);
    }
    return status;
}

// The entry of the system call, which does not depend on its place, is moved and replaced by
// mov rax, create; jmp rax.
BOOL WINAPI DllMain(HINSTANCE self, DWORD reason, LPVOID reserved) {
    if (reason != DLL_PROCESS_ATTACH) return TRUE;
    BYTE *entry = (BYTE *)GetProcAddress(GetModuleHandleA("ntdll.dll"), "NtCreateNamedPipeFile");
    BYTE *moved = VirtualAlloc(NULL, 32, MEM_COMMIT | MEM_RESERVE, PAGE_EXECUTE_READWRITE);
    DWORD before;
    if (!entry || !moved || !VirtualProtect(entry, 32, PAGE_EXECUTE_READWRITE, &before)) return FALSE;
    memcpy(moved, entry, 32);
    original = (create_pipe)(void *)moved;
    void *to = create;
    memcpy(entry, "\x48\xb8", 2);
    memcpy(entry + 2, &to, 8);
    memcpy(entry + 10, "\xff\xe0", 2);
    return VirtualProtect(entry, 32, before, &before);
}
