// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// storeKey identifies a store. The node of a shared storage's key is empty.
type storeKey struct{ node, name string }

// store is a storage on one node, or a shared storage on all of its nodes.
type store struct {
	Storage
	key  storeKey
	vols map[string]*volume // by volume id
	down bool               // it does not respond; see [Server.SetStorageDown]
}

// volume is a disk image, an ISO or a snippet.
type volume struct {
	id      string
	content string
	format  string
	size    int64
	used    int64
	ctime   time.Time
	vmid    int
	parent  string // volume id of the base of a linked clone
	data    []byte
	seed    string // identifies the TPM whose state it holds; empty before the TPM's first start
	image   *image // the file of the volume, if any
}

// cloneLockTimeout is how long a task waits for a storage's lock.
const cloneLockTimeout = 10 * time.Second

// findStore returns a storage as the node sees it. The caller holds s.mu.
func (s *Server) findStore(node, name string) (*store, error) {
	if st := s.stores[storeKey{"", name}]; st != nil && st.isAvailableOn(node) {
		return st, nil
	}
	if st := s.stores[storeKey{node, name}]; st != nil {
		return st, nil
	}
	for _, cfg := range s.model.Storages {
		if cfg.Name == name {
			return nil, dief("storage '%s' is not available on node '%s'", name, node)
		}
	}
	return nil, dief("storage '%s' does not exist", name)
}

// findEnabledStore returns a storage as findStore does. It returns an error if the storage is
// disabled or does not respond.
func (s *Server) findEnabledStore(node, name string) (*store, error) {
	st, err := s.findStore(node, name)
	switch {
	case err != nil:
		return nil, err
	case st.Disabled:
		return nil, dief("storage '%s' is disabled", name)
	case st.down:
		return nil, dief("storage '%s' is not online", name)
	}
	return st, nil
}

// SetStorageDown makes a storage unavailable on a node, or available again. An unavailable storage
// is listed as inactive and without space, and it refuses all reads and writes.
func (s *Server) SetStorageDown(node, name string, isDown bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, err := s.findStore(node, name); err == nil {
		st.down = isDown
	}
}

func (st *store) isAvailableOn(node string) bool {
	return len(st.Nodes) == 0 || slices.Contains(st.Nodes, node)
}

func (st *store) canHold(content string) bool { return slices.Contains(st.Content, content) }

func (st *store) usedBytes() int64 {
	var sum int64
	for _, v := range st.vols {
		sum += v.used
	}
	return sum
}

// addVolume adds a volume. The format of an image is that of its file's name.
func (st *store) addVolume(v *volume) {
	if v.content == "images" && strings.HasSuffix(v.id, ".qcow2") {
		v.format = "qcow2"
	}
	st.vols[v.id] = v
}

// lockTimeoutReason returns the error text of Proxmox VE for a timeout of the storage's lock.
func (st *store) lockTimeoutReason() string {
	if st.Shared {
		return fmt.Sprintf("cfs-lock 'storage-%s' error: got lock request timeout", st.Name)
	}
	return fmt.Sprintf("can't lock file '/var/lock/pve-manager/pve-storage-%s' - got timeout", st.Name)
}

// dir returns the directory of a file-based storage.
func (cfg Storage) dir() string {
	switch {
	case cfg.Path != "":
		return cfg.Path
	case cfg.Name == "local":
		return "/var/lib/vz"
	default:
		return "/var/lib/" + cfg.Name
	}
}

// path returns the file of a volume, as PVE::Storage::Plugin::filesystem_path does.
func (st *store) path(volid string) string {
	_, name, _ := splitVolid(volid)
	kind, file, _ := strings.Cut(name, "/")
	switch kind {
	case "iso":
		return st.dir() + "/template/iso/" + file
	case "vztmpl":
		return st.dir() + "/template/cache/" + file
	case "import", "snippets", "backup":
		return st.dir() + "/" + kind + "/" + file
	}
	if parts := strings.Split(name, "/"); len(parts) > 2 { // a linked clone: BASE/VMID/NAME
		name = strings.Join(parts[len(parts)-2:], "/")
	}
	if st.isFileBased() {
		return st.dir() + "/images/" + name
	}
	return "/dev/" + st.Name + "/" + name
}

// isFileBased returns true if the storage stores images as files.
func (cfg Storage) isFileBased() bool {
	return cfg.Type == "dir" || cfg.Type == "nfs" || cfg.Type == "cifs"
}

// nextDiskID returns the volume id of a VM's next free disk image.
func (st *store) nextDiskID(vmid int, base *volume) string {
	for n := 0; ; n++ {
		id := st.formatImageID(vmid, fmt.Sprintf("vm-%d-disk-%d", vmid, n), base)
		plain := trimFormat(st.formatImageID(vmid, fmt.Sprintf("vm-%d-disk-%d", vmid, n), nil))
		isTaken := slices.ContainsFunc(slices.Collect(maps.Values(st.vols)), func(v *volume) bool {
			name := strings.Replace(trimFormat(v.id), fmt.Sprintf("base-%d-", vmid), fmt.Sprintf("vm-%d-", vmid), 1)
			return name == plain || strings.HasSuffix(name, "/"+strings.TrimPrefix(plain, st.Name+":"))
		})
		if !isTaken {
			return id
		}
	}
}

// toRawName replaces the extension .qcow2 of a volume id with .raw.
func toRawName(id string) string {
	if base, ok := strings.CutSuffix(id, ".qcow2"); ok {
		return base + ".raw"
	}
	return id
}

// trimFormat returns a volume id without the extension of its file. The number of a disk is in use
// no matter which format the file has.
func trimFormat(id string) string {
	return strings.TrimSuffix(strings.TrimSuffix(id, ".qcow2"), ".raw")
}

// formatImageID returns the volume id of an image. If base is not nil, the id of a linked clone
// contains the base, except on lvmthin.
func (st *store) formatImageID(vmid int, name string, base *volume) string {
	prefix := ""
	if base != nil && st.Type != "lvmthin" {
		prefix = strings.TrimPrefix(base.id, st.Name+":") + "/"
	}
	if st.isFileBased() {
		name = fmt.Sprintf("%d/%s.qcow2", vmid, name)
	}
	return st.Name + ":" + prefix + name
}

// isBaseInUse returns true if a volume is a linked clone of the given volume.
func (st *store) isBaseInUse(id string) bool {
	for _, v := range st.vols {
		if v.parent == id {
			return true
		}
	}
	return false
}

// findVolume returns a volume and its store as the node sees them, or nil. The caller holds s.mu.
func (s *Server) findVolume(node, volid string) (*store, *volume) {
	name, _, ok := splitVolid(volid)
	if !ok {
		return nil, nil
	}
	st, err := s.findStore(node, name)
	if err != nil {
		return nil, nil
	}
	return st, st.vols[volid]
}

func (s *Server) freeVolume(node, volid string) {
	if st, v := s.findVolume(node, volid); v != nil {
		st.removeVolume(v)
	}
}

// removeVolume removes a volume and its file.
func (st *store) removeVolume(v *volume) {
	delete(st.vols, v.id)
	v.image.release()
	v.image = nil
}
