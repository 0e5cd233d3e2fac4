// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf16"
)

// VolumeLabel is the label by which cloud-init's NoCloud data source finds its cloud-init ISO.
const VolumeLabel = "cidata"

// Names of the NoCloud files on the cloud-init ISO.
const (
	FileUserData      = "user-data"
	FileMetaData      = "meta-data"
	FileNetworkConfig = "network-config"
)

const (
	sectorSize = 2048
	// isoName is what ISO 9660 level 2 allows for a name without its version.
	isoName = 27
	// maxISOFileName is what Joliet allows.
	maxISOFileName = 64
	// maxISOBytes bounds an image; its files are a few texts and one small program.
	maxISOBytes = 256 << 20
)

// isoFile is one file on its way into an image.
type isoFile struct {
	name    string // as given
	primary string // upper-case name of plain ISO 9660
	data    []byte
	sector  uint32
}

func (f *isoFile) size() uint32 { return uint32(len(f.data)) } //nolint:gosec // bounded by maxISOBytes

// ISO packs files into an ISO 9660 image labelled "cidata", with Rock Ridge and Joliet
// names so that every system sees the names as given. Names are of one level: letters,
// digits, dot, dash and underscore, at most 64 of them, not beginning with a dot.
//
// The image is built in memory (it holds credentials), its files are readable by root
// alone, and it bears no dates of its own: the same files give the same bytes.
// Layout after ECMA-119, SUSP 1.12, RRIP 1.12 and the Joliet specification.
func ISO(files map[string][]byte) ([]byte, error) {
	list, err := isoFiles(files)
	if err != nil {
		return nil, err
	}

	l := layoutISO(list)
	if size := int64(l.sectors) * sectorSize; size > maxISOBytes {
		return nil, fmt.Errorf("build ISO image: %d bytes are more than the %d that an image may have: "+
			"give the machine fewer or smaller files", size, maxISOBytes)
	}

	img := make([]byte, int64(l.sectors)*sectorSize)
	put := func(sector uint32, b []byte) { copy(img[int64(sector)*sectorSize:], b) }

	put(sectorPrimary, volumeDescriptor(l, false))
	put(sectorJoliet, volumeDescriptor(l, true))
	put(sectorTerminator, append([]byte{255}, "CD001\x01"...))

	for _, t := range []struct {
		at    uint32
		order binary.ByteOrder
		root  uint32
	}{
		{sectorPathL, binary.LittleEndian, l.rootPrimary},
		{sectorPathM, binary.BigEndian, l.rootPrimary},
		{sectorJolietPathL, binary.LittleEndian, l.rootJoliet},
		{sectorJolietPathM, binary.BigEndian, l.rootJoliet},
	} {
		put(t.at, pathTable(t.order, t.root))
	}

	put(l.rootPrimary, packRecords(l.primaryRecords(l.sizePrimary)))
	put(l.rootJoliet, packRecords(l.jolietRecords(l.sizeJoliet)))

	for _, f := range list {
		put(f.sector, f.data)
	}

	return img, nil
}

// isoFiles checks the names and gives each file its plain ISO 9660 name; sorted by name.
func isoFiles(files map[string][]byte) ([]*isoFile, error) {
	list := make([]*isoFile, 0, len(files))
	taken := map[string]bool{}

	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !validISOName(name) {
			return nil, fmt.Errorf("build ISO image: file name %q: use 1 to %d letters, digits, dots, dashes "+
				"and underscores, not beginning with a dot", name, maxISOFileName)
		}

		primary := plainName(name)
		for i := 1; taken[primary]; i++ {
			suffix := fmt.Sprintf("_%d", i)
			stem := strings.TrimSuffix(plainName(name), ".")
			stem = strings.ReplaceAll(stem, ".", "_")
			primary = stem[:min(len(stem), isoName-1-len(suffix))] + suffix + "."
		}

		taken[primary] = true
		list = append(list, &isoFile{name: name, primary: primary, data: files[name]})
	}

	return list, nil
}

func validISOName(name string) bool {
	if name == "" || len(name) > maxISOFileName || name[0] == '.' {
		return false
	}

	return strings.IndexFunc(name, func(r rune) bool { return !isLetterOrDigit(r) && !strings.ContainsRune("._-", r) }) < 0
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// plainName turns a name into NAME.EXT of upper-case letters, digits and underscores.
func plainName(name string) string {
	stem, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		stem, ext = name[:i], name[i+1:]
	}

	plain := func(s string) string {
		return strings.Map(func(r rune) rune {
			if !isLetterOrDigit(r) {
				return '_'
			}

			return r
		}, strings.ToUpper(s))
	}
	ext = plain(ext)
	ext = ext[:min(len(ext), 3)]
	stem = plain(stem)

	return stem[:min(len(stem), isoName-1-len(ext))] + "." + ext
}

// Fixed sectors, then the two root directories, then the files.
const (
	sectorPrimary uint32 = iota + 16
	sectorJoliet
	sectorTerminator
	sectorPathL
	sectorPathM
	sectorJolietPathL
	sectorJolietPathM
	sectorFree
)

// isoLayout says where everything is.
type isoLayout struct {
	files                   []*isoFile
	rootPrimary, rootJoliet uint32 // first sectors
	sizePrimary, sizeJoliet uint32 // bytes, whole sectors
	sectors                 uint32
}

func layoutISO(files []*isoFile) *isoLayout {
	l := &isoLayout{files: files, rootPrimary: sectorFree}
	// Sizes do not depend on the sizes and sectors written into the records.
	l.sizePrimary = uint32(len(packRecords(l.primaryRecords(0)))) //nolint:gosec // bounded by the number of files
	l.rootJoliet = l.rootPrimary + sectorsOf(int64(l.sizePrimary))
	l.sizeJoliet = uint32(len(packRecords(l.jolietRecords(0)))) //nolint:gosec // bounded by the number of files
	next := l.rootJoliet + sectorsOf(int64(l.sizeJoliet))

	for _, f := range files {
		f.sector = next
		next += sectorsOf(int64(len(f.data)))
	}

	l.sectors = next

	return l
}

// sectorsOf is the number of sectors that n bytes take.
func sectorsOf(n int64) uint32 {
	return uint32((n + sectorSize - 1) / sectorSize) //nolint:gosec // a slice is far from 2^32 sectors
}

// packRecords lays records one after the other; none may cross a sector's end.
func packRecords(records [][]byte) []byte {
	var out []byte

	for _, r := range records {
		if left := sectorSize - len(out)%sectorSize; left < len(r) {
			out = append(out, make([]byte, left)...)
		}

		out = append(out, r...)
	}

	if rest := len(out) % sectorSize; rest > 0 {
		out = append(out, make([]byte, sectorSize-rest)...)
	}

	return out
}

func (l *isoLayout) primaryRecords(size uint32) [][]byte {
	files := slices.SortedFunc(slices.Values(l.files), func(a, b *isoFile) int { return strings.Compare(a.primary, b.primary) })
	self := rockRidge(rrSP(), rrPX(modeDir), rrER())
	records := [][]byte{
		directoryRecord("\x00", l.rootPrimary, size, true, self),
		directoryRecord("\x01", l.rootPrimary, size, true, rockRidge(rrPX(modeDir))),
	}

	for _, f := range files {
		rr := rockRidge(rrPX(modeFile), rrNM(f.name))
		records = append(records, directoryRecord(f.primary+";1", f.sector, f.size(), false, rr))
	}

	return records
}

func (l *isoLayout) jolietRecords(size uint32) [][]byte {
	records := [][]byte{
		directoryRecord("\x00", l.rootJoliet, size, true, nil),
		directoryRecord("\x01", l.rootJoliet, size, true, nil),
	}
	// l.files is sorted by name, which for ASCII is the order of its UCS-2 form.
	for _, f := range l.files {
		records = append(records, directoryRecord(string(ucs2(f.name)), f.sector, f.size(), false, nil))
	}

	return records
}

// directoryRecord is ECMA-119 9.1.
func directoryRecord(id string, sector, size uint32, dir bool, systemUse []byte) []byte {
	var b bytes.Buffer

	b.Write([]byte{0, 0}) // length follows; no extended attributes
	b.Write(both32(sector))
	b.Write(both32(size))
	b.Write(isoDate())

	flags := byte(0)
	if dir {
		flags = 2
	}

	b.Write([]byte{flags, 0, 0})
	b.Write(both16(1))
	b.WriteByte(byte(len(id))) //nolint:gosec // names are bounded
	b.WriteString(id)

	if len(id)%2 == 0 {
		b.WriteByte(0)
	}

	b.Write(systemUse)

	if b.Len()%2 == 1 {
		b.WriteByte(0)
	}

	out := b.Bytes()
	out[0] = byte(len(out)) //nolint:gosec // names are bounded

	return out
}

// POSIX modes: what is on the cloud-init ISO is for root alone.
const (
	modeDir  uint32 = 0o040500
	modeFile uint32 = 0o100500
)

func rockRidge(entries ...[]byte) []byte { return bytes.Join(entries, nil) }

// rrSP says that the system use fields follow SUSP (SUSP 5.3).
func rrSP() []byte { return []byte{'S', 'P', 7, 1, 0xbe, 0xef, 0} }

// rrER says that they are those of Rock Ridge (SUSP 5.5).
func rrER() []byte {
	const (
		id     = "RRIP_1991A"
		descr  = "THE ROCK RIDGE INTERCHANGE PROTOCOL"
		source = "IEEE P1282"
	)

	e := []byte{'E', 'R', byte(8 + len(id) + len(descr) + len(source)), 1, byte(len(id)), byte(len(descr)), byte(len(source)), 1}

	return append(e, id+descr+source...)
}

// rrPX is mode, links, user and group (RRIP 4.1.1).
func rrPX(mode uint32) []byte {
	links := uint32(1)
	if mode == modeDir {
		links = 2
	}

	return bytes.Join([][]byte{{'P', 'X', 36, 1}, both32(mode), both32(links), both32(0), both32(0)}, nil)
}

// rrNM is the name as given (RRIP 4.1.4).
func rrNM(name string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(name)), 1, 0}, name...) //nolint:gosec // names are bounded
}

// volumeDescriptor is ECMA-119 8.4, or 8.5 with Joliet's escape sequence.
func volumeDescriptor(l *isoLayout, joliet bool) []byte {
	kind, root, size, pathL, pathM := byte(1), l.rootPrimary, l.sizePrimary, sectorPathL, sectorPathM
	if joliet {
		kind, root, size, pathL, pathM = 2, l.rootJoliet, l.sizeJoliet, sectorJolietPathL, sectorJolietPathM
	}

	text := func(s string, n int) []byte { return padText(s, n, joliet) }

	var b bytes.Buffer

	b.WriteByte(kind)
	b.WriteString("CD001\x01\x00")
	b.Write(text("", 32))
	b.Write(text(VolumeLabel, 32))
	b.Write(make([]byte, 8))
	b.Write(both32(l.sectors))

	escape := make([]byte, 32)
	if joliet {
		copy(escape, "%/E") // UCS-2 level 3
	}

	b.Write(escape)
	b.Write(both16(1))
	b.Write(both16(1))
	b.Write(both16(sectorSize))
	b.Write(both32(uint32(len(pathTable(binary.LittleEndian, root))))) //nolint:gosec // ten bytes
	b.Write(binary.LittleEndian.AppendUint32(nil, pathL))
	b.Write(make([]byte, 4))
	b.Write(binary.BigEndian.AppendUint32(nil, pathM))
	b.Write(make([]byte, 4))
	b.Write(directoryRecord("\x00", root, size, true, nil))

	for _, n := range []int{128, 128, 128, 128, 37, 37, 37} {
		b.Write(text("", n))
	}

	for range 4 { // created, modified, expires, effective: not stated
		b.WriteString(strings.Repeat("0", 16) + "\x00")
	}

	b.WriteByte(1)

	return b.Bytes()
}

// pathTable has the root directory alone (ECMA-119 9.4).
func pathTable(order binary.ByteOrder, root uint32) []byte {
	b := make([]byte, 10)
	b[0] = 1
	order.PutUint32(b[2:], root)
	order.PutUint16(b[6:], 1)

	return b
}

// isoDate is the same for all: 2000-01-01T00:00:00Z.
func isoDate() []byte { return []byte{100, 1, 1, 0, 0, 0, 0} }

func padText(s string, n int, wide bool) []byte {
	if !wide {
		return append([]byte(s), bytes.Repeat([]byte{' '}, n-len(s))...)
	}

	out := ucs2(s)
	for len(out)+1 < n {
		out = append(out, 0, ' ')
	}

	return append(out, make([]byte, n-len(out))...)
}

func ucs2(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.BigEndian.AppendUint16(out, u)
	}

	return out
}

// both32 is a number in both byte orders, ECMA-119 7.3.3.
func both32(v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, v), v)
}

// both16 is a number in both byte orders, ECMA-119 7.2.3.
func both16(v uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, v), v)
}
