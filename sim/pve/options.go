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
)

// option is one setting of a VM's configuration.
type option struct {
	param
	// priv is what changing it needs; "" needs a check of its own, rootPriv
	// root itself.
	priv string
	// live settings take effect on a running VM at once; the others wait for
	// its next start.
	live bool
}

const rootPriv = "root"

// plainOptions are the options without a number.
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
		"cpuunits": number(cpu, 1, 262144), "numa": boolean(cpu), "affinity": text(cpu),
		"memory": checked(mem, checkMemory), "balloon": number(mem, 0, 0), "shares": live(number(mem, 0, 50000)),
		"acpi": boolean(hw), "hotplug": text(hw), "kvm": boolean(hw), "machine": text(hw), "scsihw": oneOf(hw, scsiHW()...),
		"smbios1": checked(hw, checkSMBIOS), "tablet": boolean(hw), "vga": checked(hw, checkVGA), "watchdog": text(hw),
		"agent": checked(opts, checkAgent), "autostart": boolean(opts), "bios": oneOf(opts, "seabios", "ovmf"),
		"description": live(option{param: param{maxLen: maxDescription}, priv: opts}),
		"keyboard":    text(opts), "localtime": boolean(opts), "name": live(checked(opts, checkDNSName)),
		"onboot": live(boolean(opts)), "ostype": oneOf(opts, osTypes()...), "protection": live(boolean(opts)),
		"reboot": boolean(opts), "startdate": text(opts), "startup": live(text(opts)), "tdf": boolean(opts),
		"template": boolean(opts), "tags": live(checked("", checkTags)), "vmgenid": checked(opts, checkGenID),
		"freeze": boolean("VM.PowerMgmt"), "boot": checked(disk, checkBoot), "bootdisk": text(disk),
		"vmstatestorage": live(checked(disk, checkStorageID)),
		"ciuser":         live(text(ci)), "cipassword": live(text(ci)), "ciupgrade": live(boolean(ci)),
		"citype":  live(oneOf(ci, "configdrive2", "nocloud", "opennebula")),
		"sshkeys": live(checked(ci, checkSSHKeys)), "cicustom": live(checked(ci, checkCICustom)),
		"nameserver": live(checked(netw, checkNameserver)), "searchdomain": live(text(netw)),
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
	reCPU      = regexp.MustCompile(`^(cputype=)?[A-Za-z0-9][A-Za-z0-9._-]*(,[a-z-]+=[^,]+)*$`)
	reTag      = regexp.MustCompile(`(?i)^[a-z0-9_][a-z0-9_\-+.]*$`)
	reTagSplit = regexp.MustCompile(`[,;\s\x00]+`)
	reVolid    = regexp.MustCompile(`(?i)^[a-z][a-z0-9_-]+:.+$`)
	reEncoded  = regexp.MustCompile(`^[-%a-zA-Z0-9_.!~*'()]*$`)
	reSSHKey   = regexp.MustCompile(`^(?:ssh-[a-z0-9-]+|ecdsa-[a-z0-9-]+|sk-[a-z0-9@.-]+) [A-Za-z0-9+/=]+`)
	reUUID     = regexp.MustCompile(`^[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}$`)
	reNetModel = regexp.MustCompile(`^(virtio|e1000|e1000e|rtl8139|vmxnet3|i82551|i82557b|i82559er|ne2k_isa|ne2k_pci|pcnet|` +
		`e1000-82540em|e1000-82544gc|e1000-82545em)$`)
	reHostSock = regexp.MustCompile(`^(?:socket|/dev/.+)$`)
)

// optionOf describes a configuration option, numbered or not.
func optionOf(name string) (option, bool) {
	switch {
	case isDriveName(name):
		return option{param: param{check: func(v string) error { _, err := parseDrive(v); return err }}}, true
	case reUnused.MatchString(name):
		return option{}, true
	case reNet.MatchString(name):
		return option{param: param{check: checkNet}, priv: "VM.Config.Network", live: true}, true
	case reIPConfig.MatchString(name):
		return option{param: param{check: checkIPConfig}, priv: "VM.Config.Network", live: true}, true
	case reSerial.MatchString(name):
		return option{param: param{check: matches(reHostSock)}}, true
	}
	o, ok := plainOptions()[name]
	return o, ok
}

func formatError(format string, args ...any) error {
	return fmt.Errorf("invalid format - "+format, args...)
}

func matches(re *regexp.Regexp) func(string) error {
	return func(v string) error {
		if !re.MatchString(v) {
			return errors.New("value does not match the regex pattern")
		}
		return nil
	}
}

// properties splits a=b,c=d; the first value may stand alone under the default
// key.
func properties(v, defaultKey string, known ...string) (map[string]string, error) {
	out := map[string]string{}
	for i, part := range strings.Split(v, ",") {
		k, val, ok := strings.Cut(part, "=")
		if !ok {
			if i != 0 || defaultKey == "" {
				return nil, formatError("format error\nvalue without key, but schema does not define a default key")
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
	if !reCPU.MatchString(v) {
		return formatError("format error\ncputype: value does not match the regex pattern")
	}
	return nil
}

func checkMemory(v string) error {
	p := param{kind: kInt, min: 16}
	if msg := p.validate(strings.TrimPrefix(v, "current=")); msg != "" {
		return formatError("format error\ncurrent: %s", msg)
	}
	return nil
}

func checkAgent(v string) error {
	p, err := properties(v, "enabled", "fstrim_cloned_disks", "freeze-fs-on-backup", "freeze-fs", "type")
	if err != nil {
		return err
	}
	if msg := (param{kind: kBool}).validate(p["enabled"]); msg != "" {
		return formatError("format error\nenabled: %s", msg)
	}
	return nil
}

// agentEnabled reads the agent option.
func agentEnabled(v string) bool {
	p, err := properties(v, "enabled")
	return err == nil && truthy(p["enabled"])
}

func checkVGA(v string) error {
	_, err := properties(v, "type", "memory", "clipboard")
	return err
}

func checkSMBIOS(v string) error {
	p, err := properties(v, "", "uuid", "version", "serial", "manufacturer", "product", "sku", "family", "base64")
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
	_, err := properties(v, "legacy", "order")
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

// normalTags is how Proxmox stores tags: lower case, sorted, once each.
func normalTags(v string) string {
	tags := splitTags(strings.ToLower(v))
	slices.Sort(tags)
	return strings.Join(slices.Compact(tags), ";")
}

func checkSSHKeys(v string) error {
	if !reEncoded.MatchString(v) {
		return formatError("invalid urlencoded string: %s", v)
	}
	text, err := url.PathUnescape(v)
	if err != nil {
		return formatError("invalid urlencoded string: %s", v)
	}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") && !reSSHKey.MatchString(line) {
			return errors.New("SSH public key validation error")
		}
	}
	return nil
}

func checkCICustom(v string) error {
	p, err := properties(v, "", "user", "network", "meta", "vendor")
	if err != nil {
		return err
	}
	for k, volid := range p {
		if !reVolid.MatchString(volid) {
			return formatError("format error\n%s: unable to parse volume ID '%s'", k, volid)
		}
	}
	return nil
}

func checkNameserver(v string) error {
	for _, a := range strings.FieldsFunc(v, func(r rune) bool { return r == ' ' || r == ',' || r == ';' }) {
		if net.ParseIP(a) == nil {
			return formatError("value does not look like a valid IP address")
		}
	}
	return nil
}

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
		case ok && reNetModel.MatchString(k):
			hasModel = true
			if _, err := net.ParseMAC(val); err != nil {
				return formatError("format error\nmacaddr: value does not look like a valid unicast MAC address")
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
	p, err := properties(v, "", "ip", "gw", "ip6", "gw6")
	if err != nil {
		return err
	}
	for _, k := range []string{"ip", "ip6"} {
		addr, set := p[k]
		if !set || addr == "dhcp" || (k == "ip6" && addr == "auto") {
			continue
		}
		if _, _, err := net.ParseCIDR(addr); err != nil {
			return formatError("format error\n%s: value does not look like a valid CIDR network", k)
		}
	}
	for gw, ip := range map[string]string{"gw": "ip", "gw6": "ip6"} {
		if p[gw] == "" {
			continue
		}
		if net.ParseIP(p[gw]) == nil {
			return formatError("format error\n%s: value does not look like a valid IP address", gw)
		}
		if p[ip] == "" || p[ip] == "dhcp" || p[ip] == "auto" {
			return formatError("format error\n%s: gateway requires a static IP address", gw)
		}
	}
	return nil
}
