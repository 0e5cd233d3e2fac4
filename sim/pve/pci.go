// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// PCIDevice is a PCI device of a node.
type PCIDevice struct {
	// Address is domain:bus:device.function, such as 0000:01:00.0.
	Address string `json:"address"`
	// ID is vendor:device, such as 10de:2235.
	ID string `json:"id"`
	// IOMMUGroup is the device's IOMMU group.
	IOMMUGroup int `json:"iommuGroup"`
}

// PCIMapping is a resource mapping of PCI devices.
type PCIMapping struct {
	ID          string `json:"id"`
	Description string `json:"description"`
	// MDev marks devices that can provide mediated devices.
	MDev bool `json:"mdev"`
	// Map has an entry for each device of each node, in Proxmox VE's format:
	// node=pve1,path=0000:01:00.0,id=10de:2235,iommugroup=14.
	Map []string `json:"map"`
}

// maxHostPCI is the number of options hostpciN.
const maxHostPCI = 16

func pciRoutes() []route {
	base, one := "/cluster/mapping/pci", "/cluster/mapping/pci/{mapping}"
	modify, modifyOne := requireAll("/mapping/pci", "Mapping.Modify"), requireAll("/mapping/pci/{mapping}", "Mapping.Modify")
	fields := schema{
		"description": {maxLen: 4096}, "mdev": {kind: kBool}, "live-migration-capable": {kind: kBool},
		"map": {list: true, check: newPropertyCheck(pciMapFormat)},
	}
	create := fields.merge(schema{
		"id": {required: true, check: checkConfigID}, "map": {required: true, list: true, check: newPropertyCheck(pciMapFormat)},
	})
	return []route{
		newRoute(http.MethodGet, base, ClassOther, nil, schema{"check-node": {check: checkNodeName}}, listPCIMappings),
		newRoute(http.MethodPost, base, ClassOther, modify, create, createPCIMapping),
		newRoute(http.MethodGet, one, ClassOther,
			requireAny("/mapping/pci/{mapping}", "Mapping.Use", "Mapping.Modify", "Mapping.Audit"), nil, getPCIMapping),
		newRoute(http.MethodPut, one, ClassOther, modifyOne,
			fields.merge(schema{"digest": {maxLen: 64}, "delete": {}}), updatePCIMapping),
		newRoute(http.MethodDelete, one, ClassOther, modify, nil, deletePCIMapping),
	}
}

// pciAddress is the address of a device, or of one of its functions.
const pciAddress = `[a-f0-9]{4,}:[a-f0-9]{2}:[a-f0-9]{2}(?:\.[a-f0-9])?`

var (
	rePCIPath = regexp.MustCompile(`^(?:` + pciAddress + `;)*` + pciAddress + `$`)
	rePCIID   = regexp.MustCompile(`^[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}$`)
)

// pciMapFormat is that of one entry of a mapping (PVE::Mapping::PCI).
func pciMapFormat() propertyFormat {
	pattern := func(re *regexp.Regexp) func(string) error {
		return func(v string) error {
			if !re.MatchString(v) {
				return formatError("value does not match the regex pattern")
			}
			return nil
		}
	}
	return propertyFormat{fields: schema{
		"node": {required: true, check: checkNodeName}, "path": {required: true, check: pattern(rePCIPath)},
		"id": {required: true, check: pattern(rePCIID)}, "subsystem-id": {check: pattern(rePCIID)},
		"iommugroup": {kind: kInt, min: -1}, "description": {maxLen: 4096},
	}}
}

// mappingDigest returns the digest of the file with all mappings.
func (s *Server) mappingDigest() string {
	raw, _ := json.Marshal(s.pciMappings) //nolint:errchkjson // texts and flags only
	sum := sha1.Sum(raw)                  // #nosec G401 -- the digest algorithm of Proxmox VE
	return hex.EncodeToString(sum[:])
}

func (s *Server) formatPCIMapping(m PCIMapping) map[string]any {
	out := map[string]any{"type": "pci", "map": slices.Clone(m.Map), "digest": s.mappingDigest()}
	if m.Description != "" {
		out["description"] = m.Description
	}
	if m.MDev {
		out["mdev"] = 1
	}
	return out
}

func newNoMappingError(id string) error { return dief("mapping '%s' not found", id) }

// listPCIMappings lists the mappings that the caller may use, change or read. With check-node, it checks them on
// that node.
func listPCIMappings(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	node := c.param("check-node")
	if node != "" && s.nodes[node] == nil {
		return nil, dief("no such cluster node '%s'", node)
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.pciMappings)) {
		if !s.hasAnyPrivilege(c.auth, "/mapping/pci/"+id, "Mapping.Modify", "Mapping.Use", "Mapping.Audit") {
			continue
		}
		row := s.formatPCIMapping(s.pciMappings[id])
		row["id"] = id
		if node != "" {
			row["checks"] = s.checkPCIMapping(id, node)
		}
		out = append(out, row)
	}
	return out, nil
}

// checkPCIMapping returns the problems of a mapping on a node.
func (s *Server) checkPCIMapping(id, node string) []map[string]any {
	checks := []map[string]any{}
	entries := s.findPCIEntries(id, node)
	if len(entries) == 0 {
		return append(checks, map[string]any{"severity": "warning", "message": "No mapping for node " + node + "."})
	}
	for _, entry := range entries {
		if err := s.assertPCIEntry(id, node, entry); err != nil {
			checks = append(checks, map[string]any{"severity": "error", "message": fmt.Sprintf("Invalid configuration: %s\n", err)})
		}
	}
	return checks
}

func getPCIMapping(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.pciMappings[c.vars["mapping"]]
	if !ok {
		return nil, newNoMappingError(c.vars["mapping"])
	}
	return s.formatPCIMapping(m), nil
}

func createPCIMapping(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.param("id")
	if _, exists := s.pciMappings[id]; exists {
		return nil, dief("create hardware mapping failed: pci ID '%s' already defined", id)
	}
	s.pciMappings[id] = PCIMapping{
		ID: id, Description: c.param("description"), MDev: c.boolParam("mdev"), Map: slices.Clone(c.listParam("map")),
	}
	return nil, nil //nolint:nilnil // "data": null
}

func updatePCIMapping(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.vars["mapping"]
	if digest := c.param("digest"); digest != "" && digest != s.mappingDigest() {
		return nil, dief("update hardware mapping failed: detected modified configuration - file changed by other user? Try again.")
	}
	m, ok := s.pciMappings[id]
	if !ok {
		return nil, dief("update hardware mapping failed: pci ID '%s' does not exist", id)
	}
	for _, k := range splitTags(c.param("delete")) {
		switch k {
		case "description":
			m.Description = ""
		case "mdev":
			m.MDev = false
		}
	}
	if c.hasParam("description") {
		m.Description = c.param("description")
	}
	if c.hasParam("mdev") {
		m.MDev = c.boolParam("mdev")
	}
	if c.hasParam("map") {
		m.Map = slices.Clone(c.listParam("map"))
	}
	s.pciMappings[id] = m
	return nil, nil //nolint:nilnil // "data": null
}

func deletePCIMapping(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pciMappings, c.vars["mapping"])
	return nil, nil //nolint:nilnil // "data": null
}

// findPCIEntries returns the entries of a mapping on a node. The caller holds s.mu.
func (s *Server) findPCIEntries(id, node string) []map[string]string {
	var out []map[string]string
	for _, text := range s.pciMappings[id].Map {
		if entry, err := pciMapFormat().parse(text); err == nil && entry["node"] == node {
			out = append(out, entry)
		}
	}
	return out
}

// assertPCIEntry checks an entry of a mapping against the devices of the node (PVE::Mapping::PCI::assert_valid).
func (s *Server) assertPCIEntry(mapping, node string, entry map[string]string) error {
	for i, path := range strings.Split(entry["path"], ";") {
		if !strings.Contains(path, ".") {
			path += ".0"
		}
		index := slices.IndexFunc(s.nodes[node].PCI, func(d PCIDevice) bool { return d.Address == path })
		if index < 0 {
			return fmt.Errorf("pci device '%s' not found", path)
		}
		device := s.nodes[node].PCI[index]
		group, configured := strconv.Itoa(device.IOMMUGroup), entry["iommugroup"]
		switch {
		case !strings.EqualFold(device.ID, entry["id"]):
			return fmt.Errorf("'id' does not match for '%s' (%s != %s)", mapping, device.ID, entry["id"])
		case i > 0:
		case configured == "":
			return fmt.Errorf("missing expected property 'iommugroup' for device '%s'", path)
		case configured != group:
			return fmt.Errorf("'iommugroup' does not match for '%s' (%s != %s)", mapping, group, configured)
		}
	}
	return nil
}

// hostPCI is an option hostpciN: the alternatives from which one is chosen, each a list of functions.
type hostPCI struct {
	name         string
	mediated     bool
	alternatives [][]string
}

// parseHostPCI returns the devices that the options hostpciN of a VM name (PVE::QemuServer::PCI). The caller holds
// s.mu.
func (s *Server) parseHostPCI(m *machine) ([]hostPCI, error) {
	var out []hostPCI
	for i := range maxHostPCI {
		name := "hostpci" + strconv.Itoa(i)
		if m.conf[name] == "" {
			continue
		}
		p, err := parseProperties(m.conf[name], "host")
		if err != nil {
			return nil, err
		}
		d := hostPCI{name: name, mediated: p["mdev"] != ""}
		var paths []string
		switch {
		case p["mapping"] != "" && p["host"] != "":
			return nil, dief("Cannot set both 'host' and 'mapping'.")
		case p["mapping"] != "":
			if paths, err = s.findMappedPaths(p["mapping"], m.node); err != nil {
				return nil, err
			}
		case p["host"] != "":
			paths = []string{p["host"]}
		default:
			return nil, dief("Either 'host' or 'mapping' must be set.")
		}
		for _, path := range paths {
			functions, err := s.findFunctions(m.node, path)
			if err != nil {
				return nil, err
			}
			d.alternatives = append(d.alternatives, functions)
		}
		if isTrue(p["pcie"]) && !strings.Contains(m.conf["machine"], "q35") {
			return nil, dief("q35 machine model is not enabled at /usr/share/perl5/PVE/QemuServer/PCI.pm line 510.")
		}
		out = append(out, d)
	}
	return out, nil
}

// findMappedPaths returns the paths of a mapping on a node.
func (s *Server) findMappedPaths(mapping, node string) ([]string, error) {
	entries := s.findPCIEntries(mapping, node)
	if len(entries) == 0 {
		return nil, dief("PCI device mapping not found for '%s'", mapping)
	}
	var out []string
	for _, entry := range entries {
		if err := s.assertPCIEntry(mapping, node, entry); err != nil {
			return nil, dief("PCI device mapping invalid (hardware probably changed): %s", err)
		}
		out = append(out, entry["path"])
	}
	return out, nil
}

// findFunctions returns the addresses of the functions that a path names. A path without a function names all
// functions of its device.
func (s *Server) findFunctions(node, path string) ([]string, error) {
	const longest = len("00:00.0")
	var out []string
	for id := range strings.SplitSeq(path, ";") {
		full := id
		if len(id) <= longest {
			full = "0000:" + id
		}
		found := false
		for _, d := range s.nodes[node].PCI {
			if d.Address == full || strings.HasPrefix(d.Address, full+".") {
				out, found = append(out, d.Address), true
			}
		}
		if !found {
			return nil, dief("no PCI device found for '%s'", id)
		}
	}
	return out, nil
}

// reserveHostPCI reserves the devices of a VM that starts. Mediated devices are not reserved, because several VMs
// share them. The caller holds s.mu.
func (s *Server) reserveHostPCI(m *machine) error {
	devices, err := s.parseHostPCI(m)
	if err != nil {
		return err
	}
	owners := map[string]int{}
	for _, other := range s.vms {
		if other.id != m.id && other.node == m.node {
			for _, address := range other.devices {
				owners[address] = other.id
			}
		}
	}
	var chosen []string
	for _, d := range devices {
		if d.mediated {
			continue
		}
		found, err := choosePCIAlternative(d, chosen, owners)
		if err != nil {
			return err
		}
		chosen = append(chosen, found...)
	}
	m.devices = chosen
	return nil
}

// choosePCIAlternative returns the devices of the first alternative that is free. If there is only one
// alternative, the error names the device that is not free, and the VM that has it, as Proxmox VE does.
func choosePCIAlternative(d hostPCI, chosen []string, owners map[string]int) ([]string, error) {
	isChosen := func(address string) bool { return slices.Contains(chosen, address) }
	isTaken := func(address string) bool { return owners[address] != 0 }
	if len(d.alternatives) == 1 {
		only := d.alternatives[0]
		if i := slices.IndexFunc(only, isChosen); i >= 0 {
			return nil, dief("device '%s' assigned more than once", only[i])
		}
		if i := slices.IndexFunc(only, isTaken); i >= 0 {
			return nil, dief("PCI device '%s' already in use by VMID '%d'", only[i], owners[only[i]])
		}
		return only, nil
	}
	for _, addresses := range d.alternatives {
		if !slices.ContainsFunc(addresses, isChosen) && !slices.ContainsFunc(addresses, isTaken) {
			return addresses, nil
		}
	}
	return nil, dief("could not find a free device for '%s'", d.name)
}

// checkMappingAccess checks the devices of a VM that is cloned (PVE::QemuServer::check_mapping_access). The caller
// holds s.mu.
func (s *Server) checkMappingAccess(c *call, conf map[string]string) error {
	if c.auth.isRoot() {
		return nil
	}
	for _, opt := range slices.Sorted(maps.Keys(conf)) {
		if reHostDevice.MatchString(opt) {
			if err := s.checkMappedDevice(c, opt, conf[opt]); err != nil {
				return err
			}
		}
	}
	return nil
}
