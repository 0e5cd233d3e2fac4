// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"crypto/sha1" // #nosec G505 -- the algorithm of Proxmox VE's instance id
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/diskfs/go-diskfs/backend/file"
	"github.com/diskfs/go-diskfs/filesystem/iso9660"
)

// The limits of the files in cicustom (PVE::QemuServer::Cloudinit).
const (
	maxSnippet    = 1 << 20
	maxSnippetSum = 3 << 20
)

// writeCloudInit generates the drive of Proxmox VE's own cloud-init support from the ci options. The
// caller holds s.mu.
func (s *Server) writeCloudInit(m *machine, v *volume) error {
	custom, err := s.readCustomFiles(m)
	if err != nil {
		return err
	}
	image, err := buildISO("cidata", buildCloudInitFiles(m, custom))
	if err != nil {
		return dief("genisoimage failed: %s", err)
	}
	v.data = image
	return nil
}

// buildCloudInitFiles returns the files of a generated medium. Custom files replace generated files.
func buildCloudInitFiles(m *machine, custom map[string][]byte) map[string][]byte {
	user, ok := custom["user"]
	if !ok {
		user = generateUserData(m)
	}
	network, ok := custom["network"]
	if !ok {
		network = generateNetworkConfig(m)
	}
	meta, ok := custom["meta"]
	if !ok {
		sum := sha1.Sum(slices.Concat(user, network)) // #nosec G401 -- the algorithm of Proxmox VE's instance id
		meta = fmt.Appendf(nil, "instance-id: %s\n", hex.EncodeToString(sum[:]))
	}
	files := map[string][]byte{"user-data": user, "meta-data": meta, "network-config": network}
	if vendor, ok := custom["vendor"]; ok {
		files["vendor-data"] = vendor
	}
	return files
}

// readCustomFiles reads the snippets in cicustom.
func (s *Server) readCustomFiles(m *machine) (map[string][]byte, error) {
	out := map[string][]byte{}
	if m.conf["cicustom"] == "" {
		return out, nil
	}
	props, err := parseProperties(m.conf["cicustom"], "")
	if err != nil {
		return nil, dief("%s", err)
	}
	sum := 0
	for _, k := range slices.Sorted(maps.Keys(props)) {
		volid := props[k]
		_, v := s.findVolume(m.node, volid)
		if _, name, _ := splitVolid(volid); !strings.HasPrefix(name, "snippets/") {
			return nil, dief("%s is not in the snippets directory", volid)
		}
		if v == nil {
			return nil, dief("can't open '/var/lib/vz/%s' - No such file or directory", strings.TrimPrefix(volid, "local:"))
		}
		sum += len(v.data)
		if len(v.data) > maxSnippet || sum > maxSnippetSum {
			return nil, dief("file '/var/lib/vz/%s' too long - aborting", strings.TrimPrefix(volid, "local:"))
		}
		out[k] = v.data
	}
	return out, nil
}

// generateUserData returns the user data in the text of PVE::QemuServer::Cloudinit.
func generateUserData(m *machine) []byte {
	name := m.conf["name"]
	if name == "" {
		name = fmt.Sprintf("VM%d", m.id)
	}
	host, _, hasDomain := strings.Cut(name, ".")
	if domain := m.conf["searchdomain"]; domain != "" && !hasDomain {
		name += "." + domain
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#cloud-config\nhostname: %s\nmanage_etc_hosts: true\nfqdn: %s", host, name)
	user := m.conf["ciuser"]
	if user != "" {
		line("user: %s", user)
	}
	if user == "root" {
		line("disable_root: False")
	}
	if password := m.conf["cipassword"]; password != "" {
		line("password: %s", password)
	}
	if keys := decodeSSHKeys(m.conf["sshkeys"]); len(keys) > 0 {
		line("ssh_authorized_keys:\n  - %s", strings.Join(keys, "\n  - "))
	}
	line("chpasswd:\n  expire: False")
	if user != "root" {
		line("users:\n  - default")
	}
	if m.conf["ciupgrade"] != "0" {
		line("package_upgrade: true")
	}
	return []byte(b.String())
}

// generateNetworkConfig returns a network configuration of version 1, as Proxmox VE writes it for
// the type nocloud.
func generateNetworkConfig(m *machine) []byte {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for n := range 32 {
		card, ok := m.conf["net"+strconv.Itoa(n)]
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%d\n      mac_address: '%s'\n      subnets:\n",
			n, strings.ToLower(reNetMAC.FindString(card)))
		ip, _ := parseProperties(cmp.Or(m.conf["ipconfig"+strconv.Itoa(n)], "ip=dhcp"), "")
		writeSubnet(&b, "dhcp4", ip["ip"], ip["gw"])
		writeSubnet(&b, "dhcp6", ip["ip6"], ip["gw6"])
	}
	if ns, sd := m.conf["nameserver"], m.conf["searchdomain"]; ns != "" || sd != "" {
		b.WriteString("    - type: nameserver\n      address:\n")
		for _, a := range strings.FieldsFunc(ns, func(r rune) bool { return r == ' ' || r == ',' || r == ';' }) {
			fmt.Fprintf(&b, "      - '%s'\n", a)
		}
		fmt.Fprintf(&b, "      search:\n      - '%s'\n", sd)
	}
	return []byte(b.String())
}

func writeSubnet(b *strings.Builder, dhcp, ip, gw string) {
	switch ip {
	case "":
	case "dhcp":
		fmt.Fprintf(b, "      - type: %s\n", dhcp)
	case "auto":
		b.WriteString("      - type: ipv6_slaac\n")
	default:
		prefix, err := netip.ParsePrefix(ip)
		if err == nil && prefix.Addr().Is4() {
			mask := net.CIDRMask(prefix.Bits(), 8*net.IPv4len) //nolint:mnd // bits of a byte
			fmt.Fprintf(b, "      - type: static\n        address: '%s'\n        netmask: '%s'\n", prefix.Addr(), net.IP(mask))
		} else {
			fmt.Fprintf(b, "      - type: static6\n        address: '%s'\n", ip)
		}
		if gw != "" {
			fmt.Fprintf(b, "        gateway: '%s'\n", gw)
		}
	}
}

// buildISO returns an ISO image with Rock Ridge and Joliet names.
func buildISO(label string, files map[string][]byte) (image []byte, err error) {
	dir, err := os.MkdirTemp("", "pvesim-iso-")
	if err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	name := filepath.Join(dir, "image.iso")
	f, err := os.Create(name) // #nosec G304 -- our own temporary file
	if err != nil {
		return nil, fmt.Errorf("create image: %w", err)
	}
	work := filepath.Join(dir, "tree")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, fmt.Errorf("create tree: %w", err)
	}
	for k, v := range files {
		if err := os.WriteFile(filepath.Join(work, k), v, 0o600); err != nil {
			return nil, fmt.Errorf("write %s: %w", k, err)
		}
	}
	backend := file.New(f, false)
	fs, err := iso9660.Create(backend, 0, 0, isoSector, work)
	if err == nil {
		err = fs.Finalize(iso9660.FinalizeOptions{RockRidge: true, Joliet: true, VolumeIdentifier: label})
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write image: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("rewind image: %w", err)
	}
	image, err = io.ReadAll(f)
	_ = f.Close()
	return image, err
}

// readCloudInitDrive returns the VM's cloud-init data as its guest sees them: the files of the first
// CD drive with a volume that has the label cidata or config-2.
func (s *Server) readCloudInitDrive(m *machine) (map[string][]byte, error) {
	s.mu.Lock()
	var images [][]byte
	for _, k := range slices.Sorted(maps.Keys(m.conf)) {
		d, err := parseDrive(m.conf[k])
		if !isDriveName(k) || err != nil || !d.isCDROM() {
			continue
		}
		if _, v := s.findVolume(m.node, d.file); v != nil && v.data != nil {
			images = append(images, v.data)
		}
	}
	s.mu.Unlock()
	var last error
	for _, data := range images {
		img, err := readISO(data)
		if err != nil {
			last = err
			continue
		}
		switch strings.ToLower(img.label) {
		case "cidata":
			return img.files, nil
		case "config-2":
			return renameConfigDriveFiles(img.files), nil
		default:
			last = fmt.Errorf("volume label %q is neither cidata nor config-2", img.label)
		}
	}
	return nil, last
}

// renameConfigDriveFiles returns the files of a config drive with their NoCloud names in addition.
func renameConfigDriveFiles(files map[string][]byte) map[string][]byte {
	out := maps.Clone(files)
	for source, target := range map[string]string{
		"openstack/latest/user_data": "user-data", "openstack/latest/meta_data.json": "meta-data",
		"openstack/latest/network_data.json": "network-config", "openstack/latest/vendor_data.json": "vendor-data",
	} {
		if v, ok := files[source]; ok {
			out[target] = v
		}
	}
	return out
}
