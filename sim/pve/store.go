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

// storeKey names one place: shared storages have no node.
type storeKey struct{ node, name string }

// store is one storage in one place.
type store struct {
	Storage
	key  storeKey
	vols map[string]*volume // by volume id
	down bool               // it does not answer: see [Server.SetStorageDown]
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
	seed    string // of the TPM whose state it is, once that was started
	image   *image // the file behind it, if there is one
}

// cloneLockWait is how long a task waits for a storage's lock.
const cloneLockWait = 10 * time.Second

// storeOn finds a storage as a node sees it; s.mu is held.
func (s *Server) storeOn(node, name string) (*store, error) {
	if st := s.stores[storeKey{"", name}]; st != nil && st.availableOn(node) {
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

// enabledStore also wants it enabled, and to answer.
func (s *Server) enabledStore(node, name string) (*store, error) {
	st, err := s.storeOn(node, name)
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

// SetStorageDown has a storage not answer, as a node sees it, or answer again: it is
// listed as not active and without space, and nothing is made, read or removed there.
func (s *Server) SetStorageDown(node, name string, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st, err := s.storeOn(node, name); err == nil {
		st.down = down
	}
}

func (st *store) availableOn(node string) bool {
	return len(st.Nodes) == 0 || slices.Contains(st.Nodes, node)
}

func (st *store) holds(content string) bool { return slices.Contains(st.Content, content) }

func (st *store) usedBytes() int64 {
	var sum int64
	for _, v := range st.vols {
		sum += v.used
	}
	return sum
}

func (st *store) add(v *volume) { st.vols[v.id] = v }

// lockError is what waiting in vain for the storage's lock says.
func (st *store) lockError() string {
	if st.Shared {
		return fmt.Sprintf("cfs-lock 'storage-%s' error: got lock request timeout", st.Name)
	}
	return fmt.Sprintf("can't lock file '/var/lock/pve-manager/pve-storage-%s' - got timeout", st.Name)
}

// fileBased storages name their images as files.
func (st *store) fileBased() bool { return st.Type == "dir" || st.Type == "nfs" || st.Type == "cifs" }

// imageName is the volume id of a VM's next free disk image.
func (st *store) nextDisk(vmid int, base *volume) string {
	for n := 0; ; n++ {
		id := st.imageID(vmid, fmt.Sprintf("vm-%d-disk-%d", vmid, n), base)
		plain := withoutFormat(st.imageID(vmid, fmt.Sprintf("vm-%d-disk-%d", vmid, n), nil))
		taken := slices.ContainsFunc(slices.Collect(maps.Values(st.vols)), func(v *volume) bool {
			name := withoutFormat(v.id)
			return name == plain || strings.HasSuffix(name, "/"+strings.TrimPrefix(plain, st.Name+":"))
		})
		if !taken {
			return id
		}
	}
}

// rawName is the id of an image with the name of a raw one.
func rawName(id string) string {
	if base, ok := strings.CutSuffix(id, ".qcow2"); ok {
		return base + ".raw"
	}
	return id
}

// withoutFormat is a volume id without the ending of its file: a number is taken in any
// format.
func withoutFormat(id string) string {
	return strings.TrimSuffix(strings.TrimSuffix(id, ".qcow2"), ".raw")
}

// imageID names an image; on storages that say so, a linked clone carries its
// base in its name.
func (st *store) imageID(vmid int, name string, base *volume) string {
	prefix := ""
	if base != nil && st.Type != "lvmthin" {
		prefix = strings.TrimPrefix(base.id, st.Name+":") + "/"
	}
	if st.fileBased() {
		name = fmt.Sprintf("%d/%s.qcow2", vmid, name)
	}
	return st.Name + ":" + prefix + name
}

// baseInUse names a volume cloned from one of the given, if there is one.
func (st *store) baseInUse(id string) bool {
	for _, v := range st.vols {
		if v.parent == id {
			return true
		}
	}
	return false
}

// volumeOf finds a volume by id from a node; s.mu is held.
func (s *Server) volumeOf(node, volid string) (*store, *volume) {
	name, _, ok := splitVolid(volid)
	if !ok {
		return nil, nil
	}
	st, err := s.storeOn(node, name)
	if err != nil {
		return nil, nil
	}
	return st, st.vols[volid]
}

func (s *Server) freeVolume(node, volid string) {
	if st, v := s.volumeOf(node, volid); v != nil {
		st.drop(v)
	}
}

// drop removes a volume and the file behind it.
func (st *store) drop(v *volume) {
	delete(st.vols, v.id)
	v.image.drop()
	v.image = nil
}
