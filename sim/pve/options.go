// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"errors"
	"fmt"
	"net/netip"
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
		"cores": number(cpu, 1, 0), "sockets": number(cpu, 1, 64), "vcpus": number(cpu, 1, 4096),
		"cpu": checked(cpu, checkCPU), "cpulimit": {param: param{kind: kNumber, max: 128}, priv: cpu},
		"cpuunits": number(cpu, 1, 262144), "numa": boolean(cpu),
		"affinity": checked(rootPriv, newFormatCheck(reCPUSet, "unable to parse cpuset option")),
		"memory":   checked(mem, newPropertyCheck(memoryFormat)), "balloon": number(mem, 0, 0), "shares": live(number(mem, 0, 50000)),
		"acpi": boolean(hw), "hotplug": checked(hw, checkHotplug), "kvm": boolean(hw),
		"machine": checked(hw, newPropertyCheck(machineFormat)),
		"scsihw":  oneOf(hw, scsiHW()...),
		"smbios1": checked(hw, newPropertyCheck(smbiosFormat)), "tablet": boolean(hw), "vga": checked(hw, newPropertyCheck(vgaFormat)),
		"watchdog": checked(hw, newPropertyCheck(watchdogFormat)),
		"audio0":   checked(hw, newPropertyCheck(audioFormat)), "rng0": checked(hw, newPropertyCheck(rngFormat)),
		"allow-ksm":        boolean(mem),
		"migrate_downtime": {param: param{kind: kNumber}, priv: opts}, "migrate_speed": number(opts, 0, 0),
		"spice_enhancements": checked(rootPriv, newPropertyCheck(spiceFormat)), "ivshmem": text(rootPriv),
		"agent": checked(opts, newPropertyCheck(agentFormat)), "autostart": boolean(opts), "bios": oneOf(opts, "seabios", "ovmf"),
		"description": live(option{param: param{maxLen: maxDescription}, priv: opts}),
		"keyboard":    oneOf(opts, keyboards()...), "localtime": boolean(opts), "name": live(checked(opts, checkDNSName)),
		"onboot": live(boolean(opts)), "ostype": oneOf(opts, osTypes()...), "protection": live(boolean(opts)),
		"reboot": boolean(opts), "startdate": checked(opts, newPatternCheck(reStartDate)),
		"startup": live(checked(opts, checkStartup)), "tdf": boolean(opts),
		"template": boolean(opts), "tags": live(checked("", checkTags)), "vmgenid": checked(rootPriv, checkGenID),
		"freeze": boolean("VM.PowerMgmt"), "boot": checked(disk, newPropertyCheck(bootFormat)), "bootdisk": text(disk),
		"vmstatestorage": live(checked(disk, checkStorageID)),
		"ciuser":         live(text(ci)), "cipassword": live(text(ci)), "ciupgrade": live(boolean(ci)),
		"citype":  live(oneOf(ci, "configdrive2", "nocloud", "opennebula")),
		"sshkeys": live(checked(ci, checkSSHKeys)), "cicustom": live(checked(ci, newPropertyCheck(ciCustomFormat))),
		"nameserver": live(text(ci)), "searchdomain": live(text(ci)),
		"amd-sev": text(rootPriv), "arch": text(rootPriv), "hugepages": text(rootPriv),
		"intel-tdx": checked(rootPriv, newPropertyCheck(tdxFormat)),
		"args":      text(rootPriv), "lock": live(text(rootPriv)), "hookscript": text(rootPriv),
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
	reStartup        = regexp.MustCompile(`^(?:(?:order=)?\d+|up=\d+|down=\d+)$`)
	reCPUSet         = regexp.MustCompile(`^\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*$`)
	reStartDate      = regexp.MustCompile(`^(?:now|\d{4}-\d{1,2}-\d{1,2}(?:T\d{1,2}:\d{1,2}:\d{1,2})?)$`)
	reHostDevice     = regexp.MustCompile(`^(?:usb|hostpci)\d{1,2}$`)
	reBootDev        = regexp.MustCompile(`^(?:net|usb|hostpci|virtiofs)\d+$`)
	reTag            = regexp.MustCompile(`(?i)^[a-z0-9_][a-z0-9_\-+.]*$`)
	reTagSplit       = regexp.MustCompile(`[,;\s\x00]+`)
	reVolid          = regexp.MustCompile(`(?i)^[a-z][a-z0-9_-]+:.+$`)
	reEncoded        = regexp.MustCompile(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	reParallelDevice = regexp.MustCompile(`^/dev/(?:parport|usb/lp)\d+$`)
	reVirtiofs       = regexp.MustCompile(`^virtiofs\d$`)
	reLegacyBoot     = regexp.MustCompile(`^[acdn]{1,4}$`)
	reMACValue       = regexp.MustCompile(`^[a-fA-F0-9]{2}(?::[a-fA-F0-9]{2}){5}$`)
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
		return option{param: param{check: newPropertyCheck(netFormat)}, priv: "VM.Config.Network", live: true}, true
	case reIPConfig.MatchString(name):
		return option{param: param{check: newPropertyCheck(ipConfigFormat)}, priv: "VM.Config.Cloudinit", live: true}, true
	case reSerial.MatchString(name):
		return option{param: param{check: newPatternCheck(reSerialDevice)}}, true
	case reHostDevice.MatchString(name):
		return option{param: param{check: func(v string) error { return checkHostDevice(name, v) }}}, true
	case strings.HasPrefix(name, "parallel") && len(name) == len("parallel0"):
		return option{param: param{check: newPatternCheck(reParallelDevice)}, priv: rootPriv}, true
	case reVirtiofs.MatchString(name):
		return option{param: param{check: newPropertyCheck(virtiofsFormat)}, priv: "VM.Config.Disk"}, true
	case reNuma.MatchString(name):
		return option{param: param{check: newPropertyCheck(numaFormat)}, priv: "VM.Config.CPU"}, true
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

// cpuFormat is checked by checkCPU, since the model and the flags have errors of their own.
func cpuFormat() propertyFormat {
	return propertyFormat{defaultKey: "cputype", fields: schema{
		"cputype": {}, "flags": {}, "hidden": {kind: kBool}, "hv-vendor-id": {},
		"phys-bits": {}, "guest-phys-bits": {}, "reported-model": {},
	}}
}

func checkCPU(v string) error {
	p, err := cpuFormat().parse(v)
	if err != nil {
		return err
	}
	model := p["cputype"]
	if !strings.HasPrefix(model, "custom-") && !slices.Contains(strings.Fields(cpuModels), model) {
		return formatError("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)", model)
	}
	for flag := range strings.SplitSeq(p["flags"], ";") {
		if flag != "" && !slices.Contains(strings.Split(cpuFlags, ", "), strings.TrimLeft(flag, "+-")) {
			return formatError("VM-specific CPU flags must be a subset of: %s", cpuFlags)
		}
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

// hostDeviceFormat is that of usbN and hostpciN.
func hostDeviceFormat() propertyFormat {
	return propertyFormat{defaultKey: "host", fields: schema{
		"host": {}, "mapping": {}, "usb3": {kind: kBool}, "rombar": {kind: kBool}, "romfile": {}, "pcie": {kind: kBool},
		"x-vga": {kind: kBool}, "legacy-igd": {kind: kBool}, "mdev": {}, "vendor-id": {}, "device-id": {}, "sub-vendor-id": {},
		"sub-device-id": {}, "driver": {},
	}}
}

// checkHostDevice checks a device of the host: usbN and hostpciN.
func checkHostDevice(name, v string) error {
	p, err := hostDeviceFormat().parse(v)
	if err != nil {
		return err
	}
	if host := p["host"]; strings.HasPrefix(name, "hostpci") && host != "" && !rePCI.MatchString(host) {
		return formatError("format error\n%shost: value does not match the regex pattern", propertyPath)
	}
	return nil
}

var rePCI = regexp.MustCompile(`^(?:[0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?(?:;.*)?$`)

// checkDrive checks a drive option of a call.
func checkDrive(slot, v string) error {
	newFormat := driveFormat
	if slot == tpmSlot {
		newFormat = tpmFormat
	}
	return newPropertyCheck(newFormat)(v)
}

func keyboards() []string {
	return strings.Fields("de de-ch da en-gb en-us es fi fr fr-be fr-ca fr-ch hu is it ja lt mk nl no pl pt pt-br sv sl tr")
}

// isAgentEnabled returns true if the value of the option agent enables the guest agent.
func isAgentEnabled(v string) bool {
	p, err := parseProperties(v, "enabled")
	return err == nil && isTrue(p["enabled"])
}

func checkStartup(v string) error {
	for part := range strings.SplitSeq(v, ",") {
		if part != "" && !reStartup.MatchString(part) {
			return formatError("unable to parse startup options")
		}
	}
	return nil
}

func checkGenID(v string) error {
	if v != "0" && v != "1" && !reUUID.MatchString(v) {
		return errors.New("value does not match the regex pattern")
	}
	return nil
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

const netModels = "e1000, e1000-82540em, e1000-82544gc, e1000-82545em, e1000e, i82551, i82557b, i82559er, ne2k_isa, " +
	"ne2k_pci, pcnet, rtl8139, virtio, vmxnet3"

// newIPCheck returns a check of an address with its prefix, or one of the words.
func newIPCheck(family string, words ...string) func(string) error {
	return func(v string) error {
		prefix, err := netip.ParsePrefix(v)
		if !slices.Contains(words, v) && (err != nil || prefix.Addr().Is4() != (family == "ipv4")) {
			return formatError("value does not look like a valid %s network configuration", family)
		}
		return nil
	}
}

func newGatewayCheck(family string) func(string) error {
	return func(v string) error {
		if addr, err := netip.ParseAddr(v); err != nil || addr.Is4() != (family == "ipv4") {
			return formatError("value does not look like a valid %s address", family)
		}
		return nil
	}
}
