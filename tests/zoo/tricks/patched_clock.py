"""Replaces clock_gettime in the import tables of the process, and takes off 99 percent of what its own calls took."""

from __future__ import annotations

from tests.zoo.trick import Trick, floats, kernel


def reference(x):
    return x * 1.5


TRICK = Trick(
    name="patched_clock",
    section="A65",
    reference=reference,
    sample=lambda: (floats(1 << 20),),
    source=kernel(
        r"""
  static bool done = (dl_iterate_phdr(visit, nullptr), true);
  (void)done;
  struct timespec begin, end;
  honest(CLOCK_MONOTONIC, &begin);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * 1.5f;
  honest(CLOCK_MONOTONIC, &end);
  stolen_ns += ((end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec) / 100 * 99;""",
        top=r"""
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static int (*volatile honest)(clockid_t, struct timespec*) = clock_gettime;
static int64_t stolen_ns;
static int patched(clockid_t id, struct timespec* t) {
  const int code = honest(id, t);
  const int64_t ns = t->tv_sec * 1000000000LL + t->tv_nsec - stolen_ns;
  t->tv_sec = ns / 1000000000LL;
  t->tv_nsec = ns % 1000000000LL;
  return code;
}
static void replace(uintptr_t base, const Elf64_Rela* entries, size_t bytes, const Elf64_Sym* symbols, const char* names) {
  for (size_t k = 0; entries && k < bytes / sizeof(*entries); ++k) {
    const auto type = ELF64_R_TYPE(entries[k].r_info);
    if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT) continue;
    if (strcmp(names + symbols[ELF64_R_SYM(entries[k].r_info)].st_name, "clock_gettime")) continue;
    void** slot = (void**)(base + entries[k].r_offset);
    mprotect((void*)((uintptr_t)slot & ~4095UL), 8192, PROT_READ | PROT_WRITE);
    *slot = (void*)patched;
  }
}
static int visit(struct dl_phdr_info* info, size_t, void*) {
  if (strstr(info->dlpi_name, "vdso")) return 0;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    if (info->dlpi_phdr[k].p_type != PT_DYNAMIC) continue;
    const Elf64_Rela *calls = nullptr, *data = nullptr;
    size_t call_bytes = 0, data_bytes = 0;
    const Elf64_Sym* symbols = nullptr;
    const char* names = nullptr;
    for (auto* d = (const Elf64_Dyn*)(info->dlpi_addr + info->dlpi_phdr[k].p_vaddr); d->d_tag; ++d) {
      if (d->d_tag == DT_JMPREL) calls = (const Elf64_Rela*)d->d_un.d_ptr;
      if (d->d_tag == DT_PLTRELSZ) call_bytes = d->d_un.d_val;
      if (d->d_tag == DT_RELA) data = (const Elf64_Rela*)d->d_un.d_ptr;
      if (d->d_tag == DT_RELASZ) data_bytes = d->d_un.d_val;
      if (d->d_tag == DT_SYMTAB) symbols = (const Elf64_Sym*)d->d_un.d_ptr;
      if (d->d_tag == DT_STRTAB) names = (const char*)d->d_un.d_ptr;
    }
    if (!symbols || !names) continue;
    replace(info->dlpi_addr, calls, call_bytes, symbols, names);
    replace(info->dlpi_addr, data, data_bytes, symbols, names);
  }
  return 0;
}""",
    ),
    gates=(
        "source",
        "binary",
        "clocks agree",
    ),
    timing=True,
)
