// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"slices"
	"strings"
)

// propertyFormat describes an option that is a list such as virtio,bridge=vmbr0.
type propertyFormat struct {
	fields schema
	// defaultKey is the key of a value without a key.
	defaultKey string
	// keyAlias is the key that gets the name of an alias: virtio=MAC is model=virtio and macaddr=MAC.
	keyAlias, alias string
	isAlias         func(key string) bool
}

// parse implements PVE::JSONSchema::parse_property_string. Its errors have the text of that function after
// "invalid format - ".
func (f propertyFormat) parse(v string) (map[string]string, error) {
	out := map[string]string{}
	for part := range strings.SplitSeq(v, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		key, value, hasKey := strings.Cut(part, "=")
		switch {
		case hasKey && (key == "" || value == ""):
			return nil, formatError("missing key in comma-separated list property")
		case !hasKey && f.defaultKey == "":
			return nil, formatError("value without key, but schema does not define a default key")
		case !hasKey:
			key, value = f.defaultKey, part
		case f.isAlias != nil && f.isAlias(key):
			if _, ok := out[f.keyAlias]; ok {
				return nil, formatError("key alias '%s' is already defined", f.keyAlias)
			}
			out[f.keyAlias] = key
			key = f.alias
		}
		if _, ok := out[key]; ok {
			return nil, formatError("duplicate key in comma-separated list property: %s", key)
		}
		out[key] = value
	}
	return out, f.validate(out)
}

// validate checks the values of a list by the schema.
func (f propertyFormat) validate(values map[string]string) error {
	if f.fields == nil {
		return nil
	}
	for key, p := range f.fields {
		if v, ok := values[key]; ok && p.kind == kBool && parseBool(v) != "" {
			values[key] = parseBool(v)
		}
	}
	errs := f.fields.validate(values)
	if len(errs) == 0 {
		return nil
	}
	lines := []string{"format error"}
	for _, key := range slices.Sorted(maps.Keys(errs)) {
		lines = append(lines, propertyPath+key+": "+strings.ReplaceAll(errs[key], "required by '", "required by '"+propertyPath))
	}
	return formatError("%s", strings.Join(lines, "\n"))
}

// propertyPath stands for the name of the option in the errors of its properties.
const propertyPath = "\x00."

// parseBool returns 1 or 0 for the words of a boolean in a list of properties, else "".
func parseBool(v string) string {
	switch strings.ToLower(v) {
	case "1", "on", "yes", "true":
		return "1"
	case "0", "off", "no", "false":
		return "0"
	}
	return ""
}

// newPropertyCheck returns a check of an option that is a list of properties.
func newPropertyCheck(newFormat func() propertyFormat) func(string) error {
	return func(v string) error {
		_, err := newFormat().parse(v)
		return err
	}
}

// parseProperties parses a list of properties whose values are not checked.
func parseProperties(v, defaultKey string) (map[string]string, error) {
	return propertyFormat{defaultKey: defaultKey}.parse(v)
}

const vgaTypes = "cirrus qxl qxl2 qxl3 qxl4 none serial0 serial1 serial2 serial3 std virtio virtio-gl vmware"

// hotplugFeatures are what the option hotplug can name.
const hotplugFeatures = "network disk cpu memory usb cloudinit"

// The formats of options (PVE::QemuServer and its modules).

func netFormat() propertyFormat {
	return propertyFormat{
		defaultKey: "model", keyAlias: "model", alias: "macaddr", isAlias: reNetModel.MatchString,
		fields: schema{
			"model": {required: true, enum: strings.Split(netModels, ", ")}, "macaddr": {check: checkMAC}, "bridge": {},
			"queues": {kind: kInt, max: 64}, "rate": {kind: kNumber}, "tag": {kind: kInt, min: 1, max: 4094}, "trunks": {},
			"firewall": {kind: kBool}, "link_down": {kind: kBool}, "mtu": {kind: kInt, min: 1, max: 65520}, "host-managed": {kind: kBool},
		},
	}
}

func agentFormat() propertyFormat {
	return propertyFormat{defaultKey: "enabled", fields: schema{
		"enabled": {kind: kBool, required: true}, "fstrim_cloned_disks": {kind: kBool}, "freeze-fs-on-backup": {kind: kBool},
		"freeze-fs": {kind: kBool}, "type": {enum: []string{"virtio", "isa"}},
	}}
}

func vgaFormat() propertyFormat {
	return propertyFormat{defaultKey: "type", fields: schema{
		"type": {enum: strings.Fields(vgaTypes)}, "memory": {kind: kInt, min: 4, max: 512}, "clipboard": {enum: []string{"vnc"}},
	}}
}

func smbiosFormat() propertyFormat {
	return propertyFormat{fields: schema{
		"uuid": {check: newPatternCheck(reUUID)}, "version": {}, "serial": {}, "manufacturer": {}, "product": {}, "sku": {},
		"family": {}, "base64": {kind: kBool},
	}}
}

func bootFormat() propertyFormat {
	return propertyFormat{defaultKey: "legacy", fields: schema{
		"legacy": {check: newPatternCheck(reLegacyBoot)}, "order": {check: checkBootOrder},
	}}
}

func ipConfigFormat() propertyFormat {
	return propertyFormat{fields: schema{
		"ip": {check: newIPCheck("ipv4", "dhcp")}, "gw": {check: newGatewayCheck("ipv4"), requires: "ip"},
		"ip6": {check: newIPCheck("ipv6", "dhcp", "auto")}, "gw6": {check: newGatewayCheck("ipv6"), requires: "ip6"},
	}}
}

func ciCustomFormat() propertyFormat {
	return propertyFormat{fields: schema{
		"user": {check: checkVolumeID}, "network": {check: checkVolumeID}, "meta": {check: checkVolumeID},
		"vendor": {check: checkVolumeID},
	}}
}

func memoryFormat() propertyFormat {
	return propertyFormat{defaultKey: "current", fields: schema{"current": {kind: kInt, min: 16}}}
}

func machineFormat() propertyFormat {
	return propertyFormat{defaultKey: "type", fields: schema{
		"type": {check: newPatternCheck(reMachine)}, "viommu": {enum: []string{"intel", "virtio"}}, "aw-bits": {kind: kNumber},
		"enable-s3": {kind: kBool}, "enable-s4": {kind: kBool},
	}}
}

func watchdogFormat() propertyFormat {
	return propertyFormat{defaultKey: "model", fields: schema{
		"model":  {enum: []string{"i6300esb", "ib700"}},
		"action": {enum: []string{"reset", "shutdown", "poweroff", "pause", "debug", "none"}},
	}}
}

func audioFormat() propertyFormat {
	return propertyFormat{fields: schema{
		"device": {required: true, enum: []string{"ich9-intel-hda", "intel-hda", "AC97"}}, "driver": {enum: []string{"spice", "none"}},
	}}
}

func rngFormat() propertyFormat {
	return propertyFormat{defaultKey: "source", fields: schema{
		"source":    {required: true, enum: []string{"/dev/urandom", "/dev/random", "/dev/hwrng"}},
		"max_bytes": {kind: kInt}, "period": {kind: kInt},
	}}
}

func spiceFormat() propertyFormat {
	return propertyFormat{fields: schema{
		"foldersharing": {kind: kBool}, "videostreaming": {enum: []string{"off", "all", "filter"}},
	}}
}

func numaFormat() propertyFormat {
	return propertyFormat{fields: schema{"cpus": {required: true}, "memory": {kind: kNumber}, "hostnodes": {}, "policy": {}}}
}

func virtiofsFormat() propertyFormat {
	return propertyFormat{defaultKey: "dirid", fields: schema{
		"dirid": {required: true, check: checkConfigID}, "cache": {}, "direct-io": {kind: kBool}, "expose-acl": {kind: kBool},
		"expose-xattr": {kind: kBool},
	}}
}

func tdxFormat() propertyFormat {
	return propertyFormat{defaultKey: "type", fields: schema{
		"type": {required: true, enum: []string{"tdx"}}, "attestation": {kind: kBool, required: true},
		"vsock-cid": {kind: kInt}, "vsock-port": {kind: kInt},
	}}
}

func driveFormat() propertyFormat {
	return propertyFormat{defaultKey: "file", fields: newDriveSchema()}
}

func tpmFormat() propertyFormat {
	return propertyFormat{defaultKey: "file", fields: schema{
		"file": {required: true, check: checkDriveFile}, "size": {}, "import-from": {}, "version": {enum: []string{"v1.2", "v2.0"}},
	}}
}

// newDriveSchema returns the properties of a disk or a CD drive.
func newDriveSchema() schema {
	out := schema{
		"file": {required: true, check: checkDriveFile}, "media": {enum: []string{"cdrom", "disk"}}, "import-from": {},
		"format":  {enum: strings.Fields("raw qcow qed qcow2 vmdk cloop")},
		"cache":   {enum: strings.Fields("none writethrough writeback unsafe directsync")},
		"discard": {enum: []string{"ignore", "on"}},
		"aio":     {enum: []string{"native", "threads", "io_uring"}},
		"efitype": {enum: []string{"2m", "4m"}},
		"ms-cert": {enum: []string{"2011", "2023", "2023w", "2023k"}},
		"rerror":  {enum: []string{"ignore", "report", "stop"}},
		"werror":  {enum: strings.Fields("enospc ignore report stop")},
		"queues":  {kind: kInt, min: 2},
		"model":   {}, "size": {}, "serial": {maxLen: 60}, "wwn": {}, "product": {}, "vendor": {}, "version": {},
		"detect_zeroes": {kind: kBool}, "pre-enrolled-keys": {kind: kBool}, "scsiblock": {kind: kBool},
	}
	for key := range strings.FieldsSeq("iothread ssd backup replicate ro snapshot shared") {
		out[key] = param{kind: kBool}
	}
	for key := range strings.FieldsSeq("mbps mbps_rd mbps_wr mbps_max mbps_rd_max mbps_wr_max") {
		out[key] = param{kind: kNumber}
	}
	for key := range strings.FieldsSeq("iops iops_rd iops_wr iops_max iops_rd_max iops_wr_max") {
		out[key] = param{kind: kInt}
	}
	return out
}

// checkDriveFile checks the volume of a drive: a volume ID, none, cdrom or a path.
func checkDriveFile(v string) error {
	if _, _, ok := splitVolid(v); !ok && v != "none" && v != "cdrom" && !strings.HasPrefix(v, "/") {
		return formatError("unable to parse volume ID '%s'", v)
	}
	return nil
}

func checkVolumeID(v string) error {
	if !reVolid.MatchString(v) {
		return formatError("unable to parse volume ID '%s'", v)
	}
	return nil
}

func checkMAC(v string) error {
	const unicast = "02468aceACE"
	if !reMACValue.MatchString(v) || !strings.ContainsRune(unicast, rune(v[1])) {
		return formatError("value does not look like a valid unicast MAC address")
	}
	return nil
}

func checkBootOrder(v string) error {
	for dev := range strings.SplitSeq(v, ";") {
		if dev != "" && !isDriveName(dev) && !reBootDev.MatchString(dev) {
			return formatError("invalid boot device '%s'", dev)
		}
	}
	return nil
}

// checkHotplug checks the option hotplug: 0, 1 or names of features.
func checkHotplug(v string) error {
	for _, name := range splitTags(v) {
		if name != "0" && name != "1" && !slices.Contains(strings.Fields(hotplugFeatures), name) {
			return formatError("invalid hotplug feature '%s'", name)
		}
	}
	return nil
}

// cpuFlags are the flags that a VM can set by itself.
const cpuFlags = "aes, amd-no-ssb, amd-ssbd, hv-evmcs, hv-tlbflush, ibpb, md-clear, nested-virt, pcid, pdpe1gb, spec-ctrl, " +
	"ssbd, virt-ssbd"
