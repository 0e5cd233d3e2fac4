// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
	"unicode/utf16"
)

// The reader below implements the parts of ECMA-119 (ISO 9660), of the Joliet specification and of
// Rock Ridge (IEEE P1282) that a Linux guest needs to read its cloud-init drive. It prefers Rock Ridge
// names to Joliet names, and Joliet names to plain names.

const (
	isoSector    = 2048
	isoFirstDesc = 16
	isoMaxDesc   = 64
	isoMaxDepth  = 8
	isoMaxFiles  = 1000
	isoMaxBytes  = 64 << 20
)

var errISO = errors.New("not a readable ISO 9660 image")

// isoImage is the content of a cloud-init drive.
type isoImage struct {
	label string
	files map[string][]byte // by slash-separated path
}

type isoReader struct {
	data         []byte
	hasJoliet    bool
	hasRockRidge bool
	skip         int // the number of bytes before the system use entries
	seen         map[uint32]bool
	total        int
	image        *isoImage
}

// readISO reads all files of an image.
func readISO(data []byte) (*isoImage, error) {
	primary, joliet := findISOVolumes(data)
	if primary == nil {
		return nil, errISO
	}
	out := &isoImage{label: strings.TrimRight(string(primary[40:72]), " \x00"), files: map[string][]byte{}}
	root := primary[156:190]
	r := &isoReader{data: data, image: out, seen: map[uint32]bool{}}
	r.findRockRidge(root)
	if !r.hasRockRidge && joliet != nil {
		r.hasJoliet = true
		root = joliet[156:190]
	}
	if err := r.readDir(root, "", 0); err != nil {
		return nil, err
	}
	return out, nil
}

// findISOVolumes returns the primary and the Joliet volume descriptor, or nil.
func findISOVolumes(data []byte) (primary, joliet []byte) {
	for i := isoFirstDesc; i < isoFirstDesc+isoMaxDesc; i++ {
		if len(data) < (i+1)*isoSector {
			return primary, joliet
		}
		d := data[i*isoSector : (i+1)*isoSector]
		if string(d[1:6]) != "CD001" {
			return primary, joliet
		}
		switch d[0] {
		case 1:
			primary = d
		case 2:
			if esc := string(d[88:91]); esc == "%/@" || esc == "%/C" || esc == "%/E" {
				joliet = d
			}
		case 255:
			return primary, joliet
		}
	}
	return primary, joliet
}

// readExtent returns the data of a directory record.
func (r *isoReader) readExtent(rec []byte) ([]byte, error) {
	start := int(binary.LittleEndian.Uint32(rec[2:6])) * isoSector
	size := int(binary.LittleEndian.Uint32(rec[10:14]))
	if start > len(r.data) || size > len(r.data)-start {
		return nil, fmt.Errorf("%w: extent outside of the image", errISO)
	}
	return r.data[start : start+size], nil
}

// findRockRidge searches the root directory's own record for the SP entry.
func (r *isoReader) findRockRidge(root []byte) {
	ext, err := r.readExtent(root)
	if err != nil || len(ext) < 34 || int(ext[0]) > len(ext) || ext[0] < 34 {
		return
	}
	su := cutSystemUse(ext[:ext[0]], 0)
	if len(su) >= 7 && su[0] == 'S' && su[1] == 'P' && su[4] == 0xBE && su[5] == 0xEF {
		r.hasRockRidge, r.skip = true, int(su[6])
	}
}

// cutSystemUse returns the system use area at the end of a directory record.
func cutSystemUse(rec []byte, skip int) []byte {
	name := int(rec[32])
	start := 33 + name + 1 - name%2 + skip
	if start > len(rec) {
		return nil
	}
	return rec[start:]
}

func (r *isoReader) readDir(rec []byte, prefix string, depth int) error {
	loc := binary.LittleEndian.Uint32(rec[2:6])
	if depth > isoMaxDepth || r.seen[loc] {
		return fmt.Errorf("%w: directories too deep or in a loop", errISO)
	}
	r.seen[loc] = true
	ext, err := r.readExtent(rec)
	if err != nil {
		return err
	}
	for offset := 0; offset < len(ext); {
		n := int(ext[offset])
		if n == 0 { // the rest of the sector is padding
			offset += isoSector - offset%isoSector
			continue
		}
		if n < 34 || offset+n > len(ext) || 33+int(ext[offset+32]) > n {
			return fmt.Errorf("%w: broken directory record", errISO)
		}
		if err := r.readEntry(ext[offset:offset+n], prefix, depth); err != nil {
			return err
		}
		offset += n
	}
	return nil
}

func (r *isoReader) readEntry(rec []byte, prefix string, depth int) error {
	id := rec[33 : 33+int(rec[32])]
	if len(id) == 1 && id[0] <= 1 {
		return nil // . and ..
	}
	name := r.decodeName(rec, id)
	if name == "" || strings.Contains(name, "/") || name == "." || name == ".." {
		return fmt.Errorf("%w: bad name %q", errISO, name)
	}
	full := path.Join(prefix, name)
	if rec[25]&2 != 0 {
		return r.readDir(rec, full, depth+1)
	}
	ext, err := r.readExtent(rec)
	if err != nil {
		return err
	}
	r.total += len(ext)
	if r.total > isoMaxBytes || len(r.image.files) >= isoMaxFiles {
		return fmt.Errorf("%w: too many files or bytes", errISO)
	}
	r.image.files[full] = bytes.Clone(ext)
	return nil
}

func (r *isoReader) decodeName(rec, id []byte) string {
	if r.hasRockRidge {
		if n := r.decodeRockRidgeName(cutSystemUse(rec, r.skip), 0); n != "" {
			return n
		}
	}
	if r.hasJoliet {
		u := make([]uint16, len(id)/2)
		for i := range u {
			u[i] = binary.BigEndian.Uint16(id[2*i:])
		}
		return strings.TrimSuffix(string(utf16.Decode(u)), ";1")
	}
	plain, _, _ := strings.Cut(string(id), ";")
	return strings.ToLower(strings.TrimSuffix(plain, ".")) // as Linux shows them
}

// decodeRockRidgeName joins the NM entries and follows continuation areas.
func (r *isoReader) decodeRockRidgeName(su []byte, hops int) string {
	var name strings.Builder
	for len(su) >= 4 && int(su[2]) >= 4 && int(su[2]) <= len(su) {
		e := su[:su[2]]
		switch string(e[:2]) {
		case "NM":
			if len(e) > 5 && e[4]&6 == 0 {
				name.Write(e[5:])
			}
		case "CE":
			if len(e) >= 28 && hops < isoMaxDepth {
				name.WriteString(r.decodeRockRidgeName(r.readContinuation(e), hops+1))
			}
		case "ST":
			return name.String()
		}
		su = su[e[2]:]
	}
	return name.String()
}

func (r *isoReader) readContinuation(e []byte) []byte {
	start := int(binary.LittleEndian.Uint32(e[4:8]))*isoSector + int(binary.LittleEndian.Uint32(e[12:16]))
	n := int(binary.LittleEndian.Uint32(e[20:24]))
	if start > len(r.data) || n > len(r.data)-start {
		return nil
	}
	return r.data[start : start+n]
}
