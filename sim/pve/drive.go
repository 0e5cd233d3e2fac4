// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	reDrive   = regexp.MustCompile(`^(?:scsi([0-9]|[12][0-9]|30)|ide[0-3]|virtio([0-9]|1[0-5])|sata[0-5]|efidisk0|tpmstate0)$`)
	reUnused  = regexp.MustCompile(`^unused\d+$`)
	reNet     = regexp.MustCompile(`^net(\d|[12]\d|3[01])$`)
	reNewDisk = regexp.MustCompile(`^(?:([^/:\s]+):)(\d+(?:\.\d+)?)$`)
	reSize    = regexp.MustCompile(`^(\d+(?:\.\d+)?)([KMGT])?$`)
)

func isDriveName(opt string) bool { return reDrive.MatchString(opt) }

// drive is a parsed option of a disk or a CD drive.
type drive struct {
	file string
	keys []string
	opts map[string]string
}

// parseDrive parses an option of a disk or a CD drive. It accepts the properties of all drives.
func parseDrive(v string) (drive, error) {
	d := drive{opts: map[string]string{}}
	p, err := parseProperties(v, "file")
	if err != nil {
		return d, err
	}
	d.file = cmp.Or(p["file"], p["volume"])
	for _, k := range slices.Sorted(maps.Keys(p)) {
		if k != "file" && k != "volume" {
			d.keys = append(d.keys, k)
			d.opts[k] = p[k]
		}
	}
	if d.file == "" {
		return d, formatError("format error\n%sfile: property is missing and it is not optional", propertyPath)
	}
	return d, nil
}

func (d drive) get(k string) string { return d.opts[k] }

// withSize returns the drive with another size.
func (d drive) withSize(n int64) drive {
	if _, ok := d.opts["size"]; !ok {
		d.keys = append(d.keys, "size")
	}
	d.opts["size"] = formatSize(n)
	return d
}

// withoutOption returns the drive without a setting.
func (d drive) withoutOption(k string) drive {
	d.keys = slices.DeleteFunc(slices.Clone(d.keys), func(x string) bool { return x == k })
	return d
}

// String returns a drive in the format in which Proxmox VE stores it: the volume, followed by the
// settings in the order of their names.
func (d drive) String() string {
	parts := []string{d.file}
	for _, k := range slices.Sorted(slices.Values(d.keys)) {
		parts = append(parts, k+"="+d.opts[k])
	}
	return strings.Join(parts, ",")
}

func (d drive) isCDROM() bool {
	return d.opts["media"] == "cdrom" || d.file == "none" || d.file == "cdrom" || d.isCloudInit()
}

var reCloudInit = regexp.MustCompile(`(?:^|[:/])(?:vm-\d+-)?cloudinit(?:\.(?:qcow2|raw))?$`)

func (d drive) isCloudInit() bool { return reCloudInit.MatchString(d.file) }

// splitVolid splits a volume id into storage and volume name.
func splitVolid(volid string) (storage, name string, ok bool) {
	return strings.Cut(volid, ":")
}

// parseSize parses a size such as 20G, 512M or 4096 and returns bytes. It returns 0 for an invalid
// size.
func parseSize(v string) int64 {
	m := reSize.FindStringSubmatch(v)
	if m == nil {
		return 0
	}
	f, _ := strconv.ParseFloat(m[1], 64)
	return int64(f * float64(sizeUnit(m[2])))
}

func sizeUnit(u string) int64 {
	switch u {
	case "K":
		return 1 << 10
	case "M":
		return 1 << 20
	case "G":
		return 1 << 30
	case "T":
		return 1 << 40
	default:
		return 1
	}
}

// formatSize formats a size in the largest unit that divides the size without remainder.
func formatSize(n int64) string {
	for _, u := range []string{"T", "G", "M", "K"} {
		if unit := sizeUnit(u); n >= unit && n%unit == 0 {
			return strconv.FormatInt(n/unit, 10) + u
		}
	}
	return strconv.FormatInt(n, 10)
}
