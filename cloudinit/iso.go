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

// VolumeLabel is the volume label by which cloud-init's NoCloud data source finds the cloud-init ISO.
const VolumeLabel = "cidata"

// Names of the NoCloud files on the cloud-init ISO.
const (
	FileUserData      = "user-data"
	FileMetaData      = "meta-data"
	FileNetworkConfig = "network-config"
)

const (
	sectorSize = 2048
	// maxPrimaryName is the maximum length of a name in ISO 9660 level 2, without its version.
	maxPrimaryName = 27
	// maxISOFileName is the maximum length of a name in Joliet.
	maxISOFileName = 64
	// maxISOBytes is the maximum size of an image, which contains a few text files and one small program.
	maxISOBytes = 256 << 20
)

// isoFile is one file of an image.
type isoFile struct {
	name        string // name in Rock Ridge and Joliet
	primaryName string // upper-case name of plain ISO 9660
	data        []byte
	sector      uint32
}

func (f *isoFile) size() uint32 { return uint32(len(f.data)) } //nolint:gosec // bounded by maxISOBytes

// BuildISO packs files into an ISO 9660 image with the label "cidata". The image has Rock Ridge and Joliet
// names, so every system sees the given names. The files are in one directory. A name has 1 to 64 letters,
// digits, dots, dashes and underscores, and does not start with a dot.
//
// BuildISO builds the image in memory, because the image contains credentials. Only root can read the files.
// The image contains no current dates, so the same files give the same bytes. The layout follows ECMA-119,
// SUSP 1.12, RRIP 1.12 and the Joliet specification.
func BuildISO(files map[string][]byte) ([]byte, error) {
	list, err := newISOFiles(files)
	if err != nil {
		return nil, err
	}

	l := layoutISO(list)
	if size := int64(l.sectors) * sectorSize; size > maxISOBytes {
		return nil, fmt.Errorf("build ISO image: %d bytes are more than the limit of %d: "+
			"give the machine fewer or smaller files", size, maxISOBytes)
	}

	img := make([]byte, int64(l.sectors)*sectorSize)
	put := func(sector uint32, b []byte) { copy(img[int64(sector)*sectorSize:], b) }

	put(sectorPrimary, newVolumeDescriptor(l, primaryVolume))
	put(sectorJoliet, newVolumeDescriptor(l, jolietVolume))
	put(sectorTerminator, append([]byte{255}, "CD001\x01"...))

	for _, t := range []struct {
		sector uint32
		order  binary.ByteOrder
		root   uint32
	}{
		{sectorPathL, binary.LittleEndian, l.rootPrimary},
		{sectorPathM, binary.BigEndian, l.rootPrimary},
		{sectorJolietPathL, binary.LittleEndian, l.rootJoliet},
		{sectorJolietPathM, binary.BigEndian, l.rootJoliet},
	} {
		put(t.sector, newPathTable(t.order, t.root))
	}

	put(l.rootPrimary, packRecords(l.buildPrimaryRecords(l.sizePrimary)))
	put(l.rootJoliet, packRecords(l.buildJolietRecords(l.sizeJoliet)))

	for _, f := range list {
		put(f.sector, f.data)
	}

	return img, nil
}

// newISOFiles validates the names and gives each file a unique plain ISO 9660 name. It sorts the files by
// name.
func newISOFiles(files map[string][]byte) ([]*isoFile, error) {
	list := make([]*isoFile, 0, len(files))
	used := map[string]bool{}

	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !isValidISOName(name) {
			return nil, fmt.Errorf("build ISO image: file name %q: use 1 to %d letters, digits, dots, dashes "+
				"and underscores, and do not start with a dot", name, maxISOFileName)
		}

		primary := toPrimaryName(name)
		for i := 1; used[primary]; i++ {
			suffix := fmt.Sprintf("_%d", i)
			stem := strings.TrimSuffix(toPrimaryName(name), ".")
			stem = strings.ReplaceAll(stem, ".", "_")
			primary = stem[:min(len(stem), maxPrimaryName-1-len(suffix))] + suffix + "."
		}

		used[primary] = true
		list = append(list, &isoFile{name: name, primaryName: primary, data: files[name]})
	}

	return list, nil
}

func isValidISOName(name string) bool {
	if name == "" || len(name) > maxISOFileName || name[0] == '.' {
		return false
	}

	return strings.IndexFunc(name, func(r rune) bool { return !isLetterOrDigit(r) && !strings.ContainsRune("._-", r) }) < 0
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}

// toPrimaryName converts a name to NAME.EXT with upper-case letters, digits and underscores.
func toPrimaryName(name string) string {
	stem, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i > 0 {
		stem, ext = name[:i], name[i+1:]
	}

	replace := func(s string) string {
		return strings.Map(func(r rune) rune {
			if !isLetterOrDigit(r) {
				return '_'
			}

			return r
		}, strings.ToUpper(s))
	}
	ext = replace(ext)
	ext = ext[:min(len(ext), 3)]
	stem = replace(stem)

	return stem[:min(len(stem), maxPrimaryName-1-len(ext))] + "." + ext
}

// Fixed sectors. The two root directories follow them, and then the files.
const (
	sectorPrimary uint32 = iota + 16
	sectorJoliet
	sectorTerminator
	sectorPathL
	sectorPathM
	sectorJolietPathL
	sectorJolietPathM
	firstFreeSector
)

// isoLayout contains the positions of the directories and files.
type isoLayout struct {
	files                   []*isoFile
	rootPrimary, rootJoliet uint32 // first sectors
	sizePrimary, sizeJoliet uint32 // bytes, whole sectors
	sectors                 uint32
}

// layoutISO places the root directories and then the files, each at the first free sector.
func layoutISO(files []*isoFile) *isoLayout {
	// The records of a directory contain its size and the sectors of its files. Their length does not depend on these
	// values, so records without the values are enough to measure the directory.
	const unknownSize = 0

	l := &isoLayout{files: files, rootPrimary: firstFreeSector}
	l.sizePrimary = uint32(len(packRecords(l.buildPrimaryRecords(unknownSize)))) //nolint:gosec // bounded by the number of files
	l.rootJoliet = l.rootPrimary + countSectors(int64(l.sizePrimary))
	l.sizeJoliet = uint32(len(packRecords(l.buildJolietRecords(unknownSize)))) //nolint:gosec // bounded by the number of files
	next := l.rootJoliet + countSectors(int64(l.sizeJoliet))

	for _, f := range files {
		f.sector = next
		next += countSectors(int64(len(f.data)))
	}

	l.sectors = next

	return l
}

// countSectors returns the number of sectors that n bytes need.
func countSectors(n int64) uint32 {
	return uint32((n + sectorSize - 1) / sectorSize) //nolint:gosec // no slice has 2^32 sectors
}

// packRecords concatenates records. No record may cross the end of a sector, so it adds padding.
func packRecords(records [][]byte) []byte {
	var out []byte

	for _, r := range records {
		if free := sectorSize - len(out)%sectorSize; free < len(r) {
			out = append(out, make([]byte, free)...)
		}

		out = append(out, r...)
	}

	if partial := len(out) % sectorSize; partial > 0 {
		out = append(out, make([]byte, sectorSize-partial)...)
	}

	return out
}

func (l *isoLayout) buildPrimaryRecords(directorySize uint32) [][]byte {
	files := slices.SortedFunc(slices.Values(l.files), func(a, b *isoFile) int {
		return strings.Compare(a.primaryName, b.primaryName)
	})
	self := joinEntries(rrSP(), rrPX(modeDir), rrER())
	records := [][]byte{
		newDirectoryRecord("\x00", l.rootPrimary, directorySize, directoryEntry, self),
		newDirectoryRecord("\x01", l.rootPrimary, directorySize, directoryEntry, joinEntries(rrPX(modeDir))),
	}

	for _, f := range files {
		rr := joinEntries(rrPX(modeFile), rrNM(f.name))
		records = append(records, newDirectoryRecord(f.primaryName+";1", f.sector, f.size(), fileEntry, rr))
	}

	return records
}

func (l *isoLayout) buildJolietRecords(directorySize uint32) [][]byte {
	records := [][]byte{
		newDirectoryRecord("\x00", l.rootJoliet, directorySize, directoryEntry, nil),
		newDirectoryRecord("\x01", l.rootJoliet, directorySize, directoryEntry, nil),
	}
	// l.files is sorted by name. For ASCII names, UCS-2 has the same order.
	for _, f := range l.files {
		records = append(records, newDirectoryRecord(string(encodeUCS2(f.name)), f.sector, f.size(), fileEntry, nil))
	}

	return records
}

// directoryEntry and fileEntry are the values of the parameter isDirectory.
const directoryEntry, fileEntry = true, false

// newDirectoryRecord returns a directory record (ECMA-119 9.1), which describes a directory or a file.
func newDirectoryRecord(id string, sector, size uint32, isDirectory bool, systemUse []byte) []byte {
	var b bytes.Buffer

	b.Write([]byte{0, 0}) // the length is set below; there are no extended attributes
	b.Write(encodeBoth32(sector))
	b.Write(encodeBoth32(size))
	b.Write(isoDate())

	flags := byte(0)
	if isDirectory {
		flags = 2
	}

	b.Write([]byte{flags, 0, 0})
	b.Write(encodeBoth16(1))
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

// POSIX modes with which only root can access the files on the cloud-init ISO.
const (
	modeDir  uint32 = 0o040500
	modeFile uint32 = 0o100500
)

func joinEntries(entries ...[]byte) []byte { return bytes.Join(entries, nil) }

// rrSP returns the entry that marks the system use fields as SUSP (SUSP 5.3).
func rrSP() []byte { return []byte{'S', 'P', 7, 1, 0xbe, 0xef, 0} }

// rrER returns the entry that marks the system use fields as Rock Ridge (SUSP 5.5).
func rrER() []byte {
	const (
		id     = "RRIP_1991A"
		descr  = "THE ROCK RIDGE INTERCHANGE PROTOCOL"
		source = "IEEE P1282"
	)

	e := []byte{'E', 'R', byte(8 + len(id) + len(descr) + len(source)), 1, byte(len(id)), byte(len(descr)), byte(len(source)), 1}

	return append(e, id+descr+source...)
}

// rrPX returns the entry with mode, links, user and group (RRIP 4.1.1).
func rrPX(mode uint32) []byte {
	links := uint32(1)
	if mode == modeDir {
		links = 2
	}

	return bytes.Join([][]byte{{'P', 'X', 36, 1}, encodeBoth32(mode), encodeBoth32(links), encodeBoth32(0), encodeBoth32(0)}, nil)
}

// rrNM returns the entry with the name (RRIP 4.1.4).
func rrNM(name string) []byte {
	return append([]byte{'N', 'M', byte(5 + len(name)), 1, 0}, name...) //nolint:gosec // names are bounded
}

// jolietVolume and primaryVolume are the values of the parameter isJoliet.
const jolietVolume, primaryVolume = true, false

// newVolumeDescriptor returns the primary volume descriptor (ECMA-119 8.4), or the supplementary one with
// Joliet's escape sequence (ECMA-119 8.5).
func newVolumeDescriptor(l *isoLayout, isJoliet bool) []byte {
	kind, root, size, pathL, pathM := byte(1), l.rootPrimary, l.sizePrimary, sectorPathL, sectorPathM
	if isJoliet {
		kind, root, size, pathL, pathM = 2, l.rootJoliet, l.sizeJoliet, sectorJolietPathL, sectorJolietPathM
	}

	text := func(s string, n int) []byte { return padText(s, n, isJoliet) }

	var b bytes.Buffer

	b.WriteByte(kind)
	b.WriteString("CD001\x01\x00")
	b.Write(text("", 32))
	b.Write(text(VolumeLabel, 32))
	b.Write(make([]byte, 8))
	b.Write(encodeBoth32(l.sectors))

	escape := make([]byte, 32)
	if isJoliet {
		copy(escape, "%/E") // UCS-2 level 3
	}

	b.Write(escape)
	b.Write(encodeBoth16(1))
	b.Write(encodeBoth16(1))
	b.Write(encodeBoth16(sectorSize))
	b.Write(encodeBoth32(uint32(len(newPathTable(binary.LittleEndian, root))))) //nolint:gosec // ten bytes
	b.Write(binary.LittleEndian.AppendUint32(nil, pathL))
	b.Write(make([]byte, 4))
	b.Write(binary.BigEndian.AppendUint32(nil, pathM))
	b.Write(make([]byte, 4))
	b.Write(newDirectoryRecord("\x00", root, size, directoryEntry, nil))

	for _, n := range []int{128, 128, 128, 128, 37, 37, 37} {
		b.Write(text("", n))
	}

	for range 4 { // created, modified, expires, effective: all unset
		b.WriteString(strings.Repeat("0", 16) + "\x00")
	}

	b.WriteByte(1)

	return b.Bytes()
}

// newPathTable returns a path table that contains only the root directory (ECMA-119 9.4).
func newPathTable(order binary.ByteOrder, root uint32) []byte {
	b := make([]byte, 10)
	b[0] = 1
	order.PutUint32(b[2:], root)
	order.PutUint16(b[6:], 1)

	return b
}

// isoDate returns the date of all records: 2000-01-01T00:00:00Z.
func isoDate() []byte { return []byte{100, 1, 1, 0, 0, 0, 0} }

func padText(s string, n int, isUCS2 bool) []byte {
	if !isUCS2 {
		return append([]byte(s), bytes.Repeat([]byte{' '}, n-len(s))...)
	}

	out := encodeUCS2(s)
	for len(out)+1 < n {
		out = append(out, 0, ' ')
	}

	return append(out, make([]byte, n-len(out))...)
}

func encodeUCS2(s string) []byte {
	var out []byte
	for _, u := range utf16.Encode([]rune(s)) {
		out = binary.BigEndian.AppendUint16(out, u)
	}

	return out
}

// encodeBoth32 encodes a number in both byte orders (ECMA-119 7.3.3).
func encodeBoth32(v uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, v), v)
}

// encodeBoth16 encodes a number in both byte orders (ECMA-119 7.2.3).
func encodeBoth16(v uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, v), v)
}
