// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// option is one setting of a VM's configuration.
type option struct {
	param
	// priv is the privilege that a change of the option requires. An empty priv means that the check
	// depends on the value. rootPriv means that only root can change the option.
	priv string
	// live is true if a change takes effect on a running VM at once. Other changes wait for the VM's
	// next start.
	live bool
}

const rootPriv = "root"

// plainOptions returns the options whose names have no number.
func plainOptions() map[string]option {
	text := func(priv string) option { return option{priv: priv} }
	live := func(o option) option { o.live = true; return o }
	boolean := func(priv string) option { return option{param: param{kind: kBool}, priv: priv} }
	number := func(priv string, lo, hi int64) option {
		return option{param: param{kind: kInt, min: lo, max: hi}, priv: priv}
	}
	checked := func(priv string, f func(string) error) option { return option{param: param{check: f}, priv: priv} }
	oneOf := func(priv string, values ...string) option { return option{param: param{enum: values}, priv: priv} }
	const (
		cpu, mem, hw     = "VM.Config.CPU", "VM.Config.Memory", "VM.Config.HWType"
		opts, disk, netw = "VM.Config.Options", "VM.Config.Disk", "VM.Config.Network"
		ci               = "VM.Config.Cloudinit"
		maxDescription   = 8192
	)
	return map[string]option{
		"cores": number(cpu, 1, 1024), "sockets": number(cpu, 1, 64), "vcpus": number(cpu, 1, 4096),
		"cpu": checked(cpu, checkCPU), "cpulimit": {param: param{kind: kNumber}, priv: cpu},
		"cpuunits": number(cpu, 1, 262144), "numa": boolean(cpu),
		"affinity": checked(rootPriv, newFormatCheck(reCPUSet, "unable to parse cpuset option")),
		"memory":   checked(mem, checkMemory), "balloon": number(mem, 0, 0), "shares": live(number(mem, 0, 50000)),
		"acpi": boolean(hw), "hotplug": text(hw), "kvm": boolean(hw), "machine": checked(hw, checkMachine),
		"scsihw":  oneOf(hw, scsiHW()...),
		"smbios1": checked(hw, checkSMBIOS), "tablet": boolean(hw), "vga": checked(hw, checkVGA),
		"watchdog": checked(hw, checkWatchdog),
		"audio0":   checked(hw, checkAudio), "rng0": checked(hw, checkRNG), "allow-ksm": boolean(mem),
		"migrate_downtime": {param: param{kind: kNumber}, priv: opts}, "migrate_speed": number(opts, 0, 0),
		"spice_enhancements": checked(rootPriv, checkSpice), "ivshmem": text(rootPriv),
		"agent": checked(opts, checkAgent), "autostart": boolean(opts), "bios": oneOf(opts, "seabios", "ovmf"),
		"description": live(option{param: param{maxLen: maxDescription}, priv: opts}),
		"keyboard":    oneOf(opts, keyboards()...), "localtime": boolean(opts), "name": live(checked(opts, checkDNSName)),
		"onboot": live(boolean(opts)), "ostype": oneOf(opts, osTypes()...), "protection": live(boolean(opts)),
		"reboot": boolean(opts), "startdate": checked(opts, newPatternCheck(reStartDate)),
		"startup": live(checked(opts, newFormatCheck(reStartup, "unable to parse startup options"))), "tdf": boolean(opts),
		"template": boolean(opts), "tags": live(checked("", checkTags)), "vmgenid": checked(opts, checkGenID),
		"freeze": boolean("VM.PowerMgmt"), "boot": checked(disk, checkBoot), "bootdisk": text(disk),
		"vmstatestorage": live(checked(disk, checkStorageID)),
		"ciuser":         live(text(ci)), "cipassword": live(text(ci)), "ciupgrade": live(boolean(ci)),
		"citype":  live(oneOf(ci, "configdrive2", "nocloud", "opennebula")),
		"sshkeys": live(checked(ci, checkSSHKeys)), "cicustom": live(checked(ci, checkCICustom)),
		"nameserver": live(text(ci)), "searchdomain": live(text(ci)),
		"args": text(rootPriv), "lock": text(rootPriv), "hookscript": text(rootPriv),
	}
}

func osTypes() []string {
	return []string{
		"other", "wxp", "w2k", "w2k3", "w2k8", "wvista", "win7", "win8", "win10", "win11",
		"l24", "l26", "solaris",
	}
}

func scsiHW() []string {
	return []string{"lsi", "lsi53c810", "virtio-scsi-pci", "virtio-scsi-single", "megasas", "pvscsi"}
}

var (
	reIPConfig = regexp.MustCompile(`^ipconfig(\d|[12]\d|3[01])$`)
	reSerial   = regexp.MustCompile(`^serial[0-3]$`)
	reMachine  = regexp.MustCompile(`^(pc|pc(-i440fx)?-\d+(\.\d+)+(\+pve\d+)?(\.pxe)?|` +
		`q35|pc-q35-\d+(\.\d+)+(\+pve\d+)?(\.pxe)?|virt(?:-\d+(\.\d+)+)?(\+pve\d+)?)$`)
	reStartup        = regexp.MustCompile(`^(?:(?:order=)?\d+|up=\d+|down=\d+)(?:,(?:order=\d+|up=\d+|down=\d+))*$`)
	reCPUSet         = regexp.MustCompile(`^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$`)
	reStartDate      = regexp.MustCompile(`^(?:now|\d{4}-\d{1,2}-\d{1,2}(?:T\d{1,2}:\d{1,2}:\d{1,2})?)$`)
	reHostDevice     = regexp.MustCompile(`^(?:usb|hostpci)\d{1,2}$`)
	reBootDev        = regexp.MustCompile(`^(?:net|usb|hostpci|virtiofs)\d+$`)
	reTag            = regexp.MustCompile(`(?i)^[a-z0-9_][a-z0-9_\-+.]*$`)
	reTagSplit       = regexp.MustCompile(`[,;\s\x00]+`)
	reVolid          = regexp.MustCompile(`(?i)^[a-z][a-z0-9_-]+:.+$`)
	reEncoded        = regexp.MustCompile(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	reParallelDevice = regexp.MustCompile(`^/dev/(?:parport|usb/lp)\d+$`)
	reNuma           = regexp.MustCompile(`^numa[0-7]$`)
	reUUID           = regexp.MustCompile(`^[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}$`)
	reNetModel       = regexp.MustCompile(`^(virtio|e1000|e1000e|rtl8139|vmxnet3|i82551|i82557b|i82559er|ne2k_isa|ne2k_pci|pcnet|` +
		`e1000-82540em|e1000-82544gc|e1000-82545em)$`)
	reSerialDevice = regexp.MustCompile(`^(?:socket|/dev/.+)$`)
)

// findOption returns the configuration option with the name and false if there is none. The name can
// have a number, such as net0.
func findOption(name string) (option, bool) {
	switch {
	case isDriveName(name):
		return option{param: param{check: func(v string) error { return checkDrive(name, v) }}}, true
	case reUnused.MatchString(name):
		return option{}, true
	case reNet.MatchString(name):
		return option{param: param{check: checkNet}, priv: "VM.Config.Network", live: true}, true
	case reIPConfig.MatchString(name):
		return option{param: param{check: checkIPConfig}, priv: "VM.Config.Cloudinit", live: true}, true
	case reSerial.MatchString(name):
		return option{param: param{check: newPatternCheck(reSerialDevice)}}, true
	case reHostDevice.MatchString(name):
		return option{param: param{check: func(v string) error { return checkHostDevice(name, v) }}}, true
	case strings.HasPrefix(name, "parallel") && len(name) == len("parallel0"):
		return option{param: param{check: newPatternCheck(reParallelDevice)}, priv: rootPriv}, true
	case reNuma.MatchString(name):
		return option{param: param{check: checkNuma}, priv: "VM.Config.CPU"}, true
	}
	o, ok := plainOptions()[name]
	return o, ok
}

func formatError(format string, args ...any) error {
	return fmt.Errorf("invalid format - "+format, args...)
}

func newPatternCheck(re *regexp.Regexp) func(string) error {
	return func(v string) error {
		if !re.MatchString(v) {
			return errors.New("value does not match the regex pattern")
		}
		return nil
	}
}

// parseProperties parses a list such as a=b,c=d. The first value can stand without a key and then
// has the default key. If known is not empty, parseProperties refuses all other keys.
func parseProperties(v, defaultKey string, known ...string) (map[string]string, error) {
	out := map[string]string{}
	for i, part := range strings.Split(v, ",") {
		k, val, ok := strings.Cut(part, "=")
		if !ok {
			if i != 0 || defaultKey == "" {
				return nil, formatError("value without key, but schema does not define a default key")
			}
			k, val = defaultKey, part
		}
		if len(known) > 0 && k != defaultKey && !slices.Contains(known, k) {
			return nil, formatError("format error\n%s: property is not defined in schema and the schema "+
				"does not allow additional properties", k)
		}
		out[k] = val
	}
	return out, nil
}

func checkCPU(v string) error {
	p, err := parseProperties(v, "cputype", "flags", "hidden", "hv-vendor-id", "phys-bits", "guest-phys-bits", "reported-model")
	if err != nil {
		return err
	}
	model := p["cputype"]
	if !strings.HasPrefix(model, "custom-") && !slices.Contains(strings.Fields(cpuModels), model) {
		return formatError("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)", model)
	}
	return nil
}

// cpuModels lists the CPU types that need no definition, as /nodes/NODE/capabilities/qemu/cpu of 9.2
// lists them.
const cpuModels = `486 Broadwell Broadwell-IBRS Broadwell-noTSX Broadwell-noTSX-IBRS Cascadelake-Server Cascadelake-Server-noTSX
Cascadelake-Server-v2 Cascadelake-Server-v4 Cascadelake-Server-v5 ClearwaterForest Conroe Cooperlake
Cooperlake-v2 EPYC EPYC-Genoa EPYC-Genoa-v2 EPYC-IBPB EPYC-Milan EPYC-Milan-v2 EPYC-Milan-v3 EPYC-Rome
EPYC-Rome-v2 EPYC-Rome-v3 EPYC-Rome-v4 EPYC-Rome-v5 EPYC-Turin EPYC-v3 EPYC-v4 EPYC-v5 GraniteRapids
GraniteRapids-v2 GraniteRapids-v3 Haswell Haswell-IBRS Haswell-noTSX Haswell-noTSX-IBRS Icelake-Client
Icelake-Client-noTSX Icelake-Server Icelake-Server-noTSX Icelake-Server-v3 Icelake-Server-v4 Icelake-Server-v5
Icelake-Server-v6 Icelake-Server-v7 IvyBridge IvyBridge-IBRS KnightsMill Nehalem Nehalem-IBRS Opteron_G1
Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 Penryn SandyBridge SandyBridge-IBRS SapphireRapids
SapphireRapids-v2 SapphireRapids-v3 SapphireRapids-v4 SierraForest SierraForest-v2 SierraForest-v3
Skylake-Client Skylake-Client-IBRS Skylake-Client-noTSX-IBRS Skylake-Client-v4 Skylake-Server
Skylake-Server-IBRS Skylake-Server-noTSX-IBRS Skylake-Server-v4 Skylake-Server-v5 Westmere Westmere-IBRS
athlon core2duo coreduo host kvm32 kvm64 max pentium pentium2 pentium3 phenom qemu32 qemu64 x86-64-v2
x86-64-v2-AES x86-64-v3 x86-64-v4`

// newFormatCheck returns a check for an option whose parser in Proxmox VE fails with the given text.
func newFormatCheck(re *regexp.Regexp, text string) func(string) error {
	return func(v string) error {
		if !re.MatchString(v) {
			return formatError("%s", text)
		}
		return nil
	}
}

func checkMachine(v string) error {
	p, err := parseProperties(v, "type", "viommu", "aw-bits", "enable-s3", "enable-s4")
	if err == nil && p["type"] != "" && !reMachine.MatchString(p["type"]) {
		return formatError("format error\ntype: value does not match the regex pattern")
	}
	return err
}

// checkEnumProperty checks that one property of an option has one of the given values.
func checkEnumProperty(v, defaultKey, key string, values []string, known ...string) error {
	p, err := parseProperties(v, defaultKey, append(known, key)...)
	if err != nil {
		return err
	}
	value, ok := p[key]
	if msg := (param{enum: values}).validate(value); ok && msg != "" {
		return formatError("format error\n%s: %s", key, msg)
	}
	return nil
}

func checkWatchdog(v string) error {
	return checkEnumProperty(v, "model", "model", []string{"i6300esb", "ib700"}, "action")
}

func checkAudio(v string) error {
	return checkEnumProperty(v, "", "device", []string{"ich9-intel-hda", "intel-hda", "AC97"}, "driver")
}

func checkRNG(v string) error {
	return checkEnumProperty(v, "source", "source", []string{"/dev/urandom", "/dev/random", "/dev/hwrng"}, "max_bytes", "period")
}

func checkSpice(v string) error {
	_, err := parseProperties(v, "", "foldersharing", "videostreaming")
	return err
}

func checkNuma(v string) error {
	_, err := parseProperties(v, "", "cpus", "memory", "hostnodes", "policy")
	return err
}

// checkHostDevice checks a device of the host: usbN and hostpciN.
func checkHostDevice(name, v string) error {
	p, err := parseProperties(v, "host", "host", "mapping", "usb3", "rombar", "romfile", "pcie", "x-vga", "legacy-igd",
		"mdev", "vendor-id", "device-id", "sub-vendor-id", "sub-device-id", "driver")
	if err != nil {
		return err
	}
	if host := p["host"]; strings.HasPrefix(name, "hostpci") && host != "" && !rePCI.MatchString(host) {
		return formatError("format error\nhost: value does not match the regex pattern")
	}
	return nil
}

var rePCI = regexp.MustCompile(`^(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?(?:;.*)?$`)

// checkDrive checks a drive option of a call.
func checkDrive(slot, v string) error {
	d, err := parseDrive(v)
	if err != nil {
		return err
	}
	_, _, volid := splitVolid(d.file)
	if !volid && d.file != "none" && d.file != "cdrom" && !strings.HasPrefix(d.file, "/") {
		return formatError("format error\nfile: invalid format - unable to parse volume ID '%s'\n", d.file)
	}
	if t := d.get("efitype"); t != "" && t != "2m" && t != "4m" {
		return formatError("format error\nefitype: value '%s' does not have a value in the enumeration '2m, 4m'", t)
	}
	if slot == tpmSlot {
		return checkTPMState(d)
	}
	return nil
}

func keyboards() []string {
	return strings.Fields("de de-ch da en-gb en-us es fi fr fr-be fr-ca fr-ch hu is it ja lt mk nl no pl pt pt-br sv sl tr")
}

func checkMemory(v string) error {
	p := param{kind: kInt, min: 16}
	if msg := p.validate(strings.TrimPrefix(v, "current=")); msg != "" {
		return formatError("format error\ncurrent: %s", msg)
	}
	return nil
}

func checkAgent(v string) error {
	p, err := parseProperties(v, "enabled", "fstrim_cloned_disks", "freeze-fs-on-backup", "freeze-fs", "type")
	if err != nil {
		return err
	}
	if msg := (param{kind: kBool}).validate(p["enabled"]); msg != "" {
		return formatError("format error\nenabled: %s", msg)
	}
	return nil
}

// isAgentEnabled returns true if the value of the option agent enables the guest agent.
func isAgentEnabled(v string) bool {
	p, err := parseProperties(v, "enabled")
	return err == nil && isTrue(p["enabled"])
}

func checkVGA(v string) error {
	_, err := parseProperties(v, "type", "memory", "clipboard")
	return err
}

func checkSMBIOS(v string) error {
	p, err := parseProperties(v, "", "uuid", "version", "serial", "manufacturer", "product", "sku", "family", "base64")
	if err != nil {
		return err
	}
	if u := p["uuid"]; u != "" && !reUUID.MatchString(u) {
		return formatError("format error\nuuid: value does not match the regex pattern")
	}
	return nil
}

func checkGenID(v string) error {
	if v != "0" && v != "1" && !reUUID.MatchString(v) {
		return errors.New("value does not match the regex pattern")
	}
	return nil
}

func checkBoot(v string) error {
	p, err := parseProperties(v, "legacy", "order")
	for dev := range strings.SplitSeq(p["order"], ";") {
		if dev != "" && !isDriveName(dev) && !reBootDev.MatchString(dev) {
			return formatError("format error\norder: invalid format - invalid boot device '%s'\n", dev)
		}
	}
	return err
}

func checkTags(v string) error {
	for _, t := range splitTags(v) {
		if !reTag.MatchString(t) {
			return formatError("invalid characters in tag")
		}
	}
	return nil
}

func splitTags(v string) []string {
	return slices.DeleteFunc(reTagSplit.Split(v, -1), func(t string) bool { return t == "" })
}

// normalizeTags returns tags as Proxmox VE stores them: in lower case, sorted and without
// duplicates.
func normalizeTags(v string) string {
	tags := splitTags(strings.ToLower(v))
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}

func checkSSHKeys(v string) error {
	if !reEncoded.MatchString(v) {
		return formatError("invalid urlencoded string: %s", v)
	}
	return nil
}

// validateSSHKeys parses each SSH key of a call, as ssh-keygen would.
func validateSSHKeys(v string) error {
	text, err := url.PathUnescape(v)
	for line := range strings.SplitSeq(text, "\n") {
		if err == nil && strings.TrimSpace(line) != "" {
			_, _, _, _, err = ssh.ParseAuthorizedKey([]byte(line))
		}
	}
	if err != nil {
		return dief("SSH public key validation error")
	}
	return nil
}

func checkCICustom(v string) error {
	p, err := parseProperties(v, "", "user", "network", "meta", "vendor")
	if err != nil {
		return err
	}
	for k, volid := range p {
		if !reVolid.MatchString(volid) {
			return formatError("format error\n%s: invalid format - unable to parse volume ID '%s'\n", k, volid)
		}
	}
	return nil
}

const netModels = "e1000, e1000-82540em, e1000-82544gc, e1000-82545em, e1000e, i82551, i82557b, i82559er, ne2k_isa, " +
	"ne2k_pci, pcnet, rtl8139, virtio, vmxnet3"

func checkNet(v string) error {
	known := []string{
		"model", "macaddr", "bridge", "queues", "rate", "tag", "trunks", "firewall", "link_down", "mtu",
		"host-managed",
	}
	hasModel := false
	for i, part := range strings.Split(v, ",") {
		k, val, ok := strings.Cut(part, "=")
		switch {
		case i == 0 && !ok && reNetModel.MatchString(part), k == "model" && reNetModel.MatchString(val):
			hasModel = true
		case i == 0 && !ok:
			return formatError("format error\nmodel: value '%s' does not have a value in the enumeration '%s'", part, netModels)
		case ok && reNetModel.MatchString(k):
			hasModel = true
			if _, err := net.ParseMAC(val); err != nil {
				return formatError("format error\nmacaddr: invalid format - value does not look like a valid unicast MAC address\n")
			}
		case ok && slices.Contains(known, k):
		default:
			return formatError("format error\n%s: property is not defined in schema and the schema "+
				"does not allow additional properties", k)
		}
	}
	if !hasModel {
		return formatError("format error\nmodel: property is missing and it is not optional")
	}
	return nil
}

func checkIPConfig(v string) error {
	p, err := parseProperties(v, "", "ip", "gw", "ip6", "gw6")
	if err != nil {
		return err
	}
	for _, k := range []string{"ip", "ip6"} {
		addr, isSet := p[k]
		if !isSet || addr == "dhcp" || (k == "ip6" && addr == "auto") {
			continue
		}
		if _, _, err := net.ParseCIDR(addr); err != nil {
			return formatError("format error\n%s: invalid format - value does not look like a valid %s network configuration\n",
				k, ipVersion(k))
		}
	}
	for _, k := range []string{"gw", "gw6"} {
		if p[k] != "" && net.ParseIP(p[k]) == nil {
			return formatError("format error\n%s: invalid format - value does not look like a valid %s address\n", k, ipVersion(k))
		}
	}
	return nil
}

func ipVersion(key string) string {
	if strings.HasSuffix(key, "6") {
		return "ipv6"
	}
	return "ipv4"
}
