/* plugin/elf.c -- reads the frozen words of ddp_plugin_desc from a shared object's bytes, without running any of its
 * code.
 *
 * It follows the same tables as the dynamic linker: program headers, PT_DYNAMIC, the hash table, .dynsym. Section
 * headers are not used, a stripped file need not have them. Every byte comes through read_at(), which stays inside
 * the file. Whether the words fit this engine is decided in kinds.c. Format: System V gABI, chapters 4 and 5. */
#include "plugin/internal.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#define HOST_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define HOST_MACHINE EM_AARCH64
#elif defined(__riscv)
#define HOST_MACHINE EM_RISCV
#elif defined(__powerpc64__)
#define HOST_MACHINE EM_PPC64
#elif defined(__s390x__)
#define HOST_MACHINE EM_S390
#else
#define HOST_MACHINE                                                                                                   \
    EM_NONE /* not compared here: the dynamic linker refuses another machine's file before it runs it */
#endif
#define HOST_DATA (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ELFDATA2LSB : ELFDATA2MSB)

#define MAX_SEGMENTS 256   /* program headers; linkers write about ten */
#define MAX_DYNAMIC  1024  /* entries of PT_DYNAMIC */
#define MAX_CHAIN    65536 /* symbols of one hash bucket */

typedef struct elf_file {
    int fd;
    uint64_t size;
    const char *path;
    uint32_t segment_count;
    Elf64_Phdr segments[MAX_SEGMENTS];
    uint64_t symtab, strtab, strsz, gnu_hash, hash; /* addresses; 0: absent */
} elf_file;

static ddp_status damaged(const elf_file *f, const char *what, ddp_err *err)
{
    return ddp_fail(err, DDP_ERR_INVALID, "%s is damaged or cut short (%s): build or copy it again", f->path, what);
}

static bool read_at(const elf_file *f, uint64_t offset, void *out, size_t length)
{
    size_t done = 0;

    if (offset > f->size || length > f->size - offset) return false;
    while (done < length) {
        ssize_t n = pread(f->fd, (char *)out + done, length - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* Bytes at an address of the loaded image, as far as they come from the file. */
static bool read_address(const elf_file *f, uint64_t address, void *out, size_t length)
{
    for (uint32_t i = 0; i < f->segment_count; i++) {
        const Elf64_Phdr *p = &f->segments[i];
        uint64_t into;

        if (p->p_type != PT_LOAD || address < p->p_vaddr) continue;
        into = address - p->p_vaddr;
        if (into >= p->p_filesz || length > p->p_filesz - into) continue;
        if (p->p_offset > f->size) return false;
        return into <= f->size - p->p_offset && read_at(f, p->p_offset + into, out, length);
    }
    return false;
}

static const char *machine_name(unsigned machine)
{
    switch (machine) {
    case EM_386: return "32-bit x86";
    case EM_X86_64: return "x86-64";
    case EM_ARM: return "32-bit Arm";
    case EM_AARCH64: return "aarch64";
    case EM_RISCV: return "RISC-V";
    case EM_PPC64: return "POWER";
    case EM_S390: return "s390x";
    default: return "another machine";
    }
}

static ddp_status read_header(elf_file *f, Elf64_Ehdr *h, ddp_err *err)
{
    if (!read_at(f, 0, h, EI_NIDENT) || memcmp(h->e_ident, ELFMAG, SELFMAG) != 0)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s is not an ELF file: a plugin is a shared object built with -shared -fPIC", f->path);
    if (h->e_ident[EI_CLASS] != ELFCLASS64)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is a 32-bit ELF file, this ddpengine is 64-bit: rebuild it for %s",
                        f->path, machine_name(HOST_MACHINE));
    if (h->e_ident[EI_DATA] != HOST_DATA)
        return ddp_fail(err, DDP_ERR_INVALID, "%s has the other byte order: rebuild it for %s", f->path,
                        machine_name(HOST_MACHINE));
    if (!read_at(f, 0, h, sizeof(*h))) return damaged(f, "no ELF header", err);
    if (h->e_machine != HOST_MACHINE && HOST_MACHINE != EM_NONE)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is built for %s (ELF machine %u), this ddpengine for %s: rebuild it",
                        f->path, machine_name(h->e_machine), h->e_machine, machine_name(HOST_MACHINE));
    if (h->e_type != ET_DYN)
        return ddp_fail(err, DDP_ERR_INVALID, "%s is not a shared object (ELF type %u): build it with -shared -fPIC",
                        f->path, h->e_type);
    return DDP_OK;
}

static ddp_status read_segments(elf_file *f, const Elf64_Ehdr *h, ddp_err *err)
{
    if (h->e_phentsize != sizeof(Elf64_Phdr) || h->e_phnum == 0 || h->e_phnum > MAX_SEGMENTS)
        return damaged(f, "its program headers make no sense", err);
    if (!read_at(f, h->e_phoff, f->segments, h->e_phnum * sizeof(Elf64_Phdr)))
        return damaged(f, "its program headers lie outside the file", err);
    f->segment_count = h->e_phnum;
    return DDP_OK;
}

static ddp_status read_dynamic(elf_file *f, ddp_err *err)
{
    const Elf64_Phdr *segment = NULL;
    uint64_t count;

    for (uint32_t i = 0; i < f->segment_count && segment == NULL; i++)
        if (f->segments[i].p_type == PT_DYNAMIC) segment = &f->segments[i];
    if (segment == NULL) return damaged(f, "it has no dynamic section", err);
    count = DDP_MIN_OF(segment->p_filesz / sizeof(Elf64_Dyn), (uint64_t)MAX_DYNAMIC);
    for (uint64_t i = 0; i < count; i++) {
        Elf64_Dyn d;
        /* by address, as the dynamic linker reads it; p_offset may say something else */
        if (!read_address(f, segment->p_vaddr + i * sizeof(d), &d, sizeof(d)))
            return damaged(f, "its dynamic section lies outside the file", err);
        switch (d.d_tag) {
        case DT_NULL: count = 0; break;
        case DT_SYMTAB: f->symtab = d.d_un.d_ptr; break;
        case DT_STRTAB: f->strtab = d.d_un.d_ptr; break;
        case DT_STRSZ: f->strsz = d.d_un.d_val; break;
        case DT_GNU_HASH: f->gnu_hash = d.d_un.d_ptr; break;
        case DT_HASH: f->hash = d.d_un.d_ptr; break;
        default: break;
        }
    }
    if (f->symtab == 0 || f->strtab == 0 || (f->gnu_hash == 0 && f->hash == 0))
        return damaged(f, "it has no dynamic symbol table", err);
    return DDP_OK;
}

/* True when symbol `index` is called ddp_plugin_desc and is defined here. */
static bool symbol_matches(const elf_file *f, uint32_t index, Elf64_Sym *s)
{
    char name[sizeof(DDP_PLUGIN_SYMBOL)];

    return read_address(f, f->symtab + (uint64_t)index * sizeof(*s), s, sizeof(*s)) && s->st_shndx != SHN_UNDEF &&
           s->st_name < f->strsz && sizeof(name) <= f->strsz - s->st_name &&
           read_address(f, f->strtab + s->st_name, name, sizeof(name)) &&
           memcmp(name, DDP_PLUGIN_SYMBOL, sizeof(name)) == 0;
}

static bool find_by_gnu_hash(const elf_file *f, Elf64_Sym *s)
{
    uint32_t head[4], hash = 5381, index, link; /* head: buckets, first symbol, bloom words, bloom shift */
    uint64_t buckets, chain;

    for (const char *c = DDP_PLUGIN_SYMBOL; *c != '\0'; c++) hash = hash * 33 + (unsigned char)*c;
    if (!read_address(f, f->gnu_hash, head, sizeof(head)) || head[0] == 0) return false;
    buckets = f->gnu_hash + sizeof(head) + (uint64_t)head[2] * 8;
    chain = buckets + (uint64_t)head[0] * 4;
    if (!read_address(f, buckets + (uint64_t)(hash % head[0]) * 4, &index, sizeof(index)) || index < head[1])
        return false;
    for (uint32_t step = 0; step < MAX_CHAIN; step++, index++) {
        if (!read_address(f, chain + (uint64_t)(index - head[1]) * 4, &link, sizeof(link))) return false;
        if ((link | 1u) == (hash | 1u) && symbol_matches(f, index, s)) return true;
        if ((link & 1u) != 0) return false;
    }
    return false;
}

static bool find_by_sysv_hash(const elf_file *f, Elf64_Sym *s)
{
    uint32_t head[2], hash = 0, index; /* head: buckets, symbols */

    for (const char *c = DDP_PLUGIN_SYMBOL; *c != '\0'; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ ((hash & 0xf0000000u) >> 24)) & 0x0fffffffu;
    }
    if (!read_address(f, f->hash, head, sizeof(head)) || head[0] == 0) return false;
    if (!read_address(f, f->hash + 8 + (uint64_t)(hash % head[0]) * 4, &index, sizeof(index))) return false;
    for (uint32_t step = 0; step < MAX_CHAIN && index != STN_UNDEF; step++) {
        if (symbol_matches(f, index, s)) return true;
        if (!read_address(f, f->hash + 8 + ((uint64_t)head[0] + index) * 4, &index, sizeof(index))) return false;
    }
    return false;
}

ddp_status plugin_elf_read_facts(int fd, const char *path, ddp_gate_facts *out, ddp_err *err)
{
    elf_file f = {.fd = fd, .path = path};
    Elf64_Ehdr header = {0};
    Elf64_Sym symbol = {0};
    struct stat st;
    ddp_gate_facts facts = {0};
    const size_t size = offsetof(ddp_plugin, name);

    if (fstat(fd, &st) != 0) return ddp_fail_errno(err, "%s cannot be read", path);
    f.size = (uint64_t)st.st_size;
    DDP_TRY(read_header(&f, &header, err));
    DDP_TRY(read_segments(&f, &header, err));
    DDP_TRY(read_dynamic(&f, err));
    if (!(f.gnu_hash != 0 ? find_by_gnu_hash(&f, &symbol) : find_by_sysv_hash(&f, &symbol)))
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s does not define " DDP_PLUGIN_SYMBOL
                        ": it is not a plugin of ddpengine, or the symbol is hidden (write DDP_PLUGIN_EXPORT in front)",
                        path);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || symbol.st_shndx == SHN_ABS)
        return ddp_fail(err, DDP_ERR_INVALID,
                        "%s defines " DDP_PLUGIN_SYMBOL " as something else than data: make it a const ddp_plugin",
                        path);
    if (symbol.st_size < size || !read_address(&f, symbol.st_value, &facts, size))
        return damaged(&f, DDP_PLUGIN_SYMBOL " is not in the file's data", err);
    *out = facts;
    return DDP_OK;
}
