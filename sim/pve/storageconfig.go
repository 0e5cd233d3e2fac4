// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// storageConfigRoutes returns the calls that read and change storage.cfg.
func storageConfigRoutes() []route {
	one := "/storage/{storage}"
	allocate := requireAll("/storage", "Datastore.Allocate")
	change := schema{
		"content": {check: checkContentList}, "disable": {kind: kBool}, "shared": {kind: kBool}, "nodes": {},
		"delete": {}, "digest": {},
	}
	create := change.merge(schema{
		"storage": {required: true, check: checkStorageID}, "type": {required: true, enum: storageTypes()}, "path": {},
		"pool": {}, "vgname": {}, "thinpool": {}, "server": {}, "export": {},
	})
	return []route{
		newRoute(http.MethodGet, "/storage", ClassOther, nil, nil, listStorageConfig),
		newRoute(http.MethodGet, one, ClassOther, requireAll(one, "Datastore.Allocate"), nil, getStorageConfig),
		newRoute(http.MethodPost, "/storage", ClassOther, allocate, create, createStorage),
		newRoute(http.MethodPut, one, ClassOther, allocate, change, updateStorage),
		newRoute(http.MethodDelete, one, ClassOther, allocate, nil, deleteStorage),
	}
}

func storageTypes() []string {
	return strings.Fields("btrfs cephfs cifs dir esxi iscsi iscsidirect lvm lvmthin nfs pbs rbd zfs zfspool")
}

// contentTypes are what a storage can hold (PVE::Storage::Plugin).
func contentTypes() []string {
	return strings.Fields("backup images import iso none rootdir snippets vztmpl")
}

func checkContentList(v string) error {
	for _, content := range splitTags(v) {
		if !slices.Contains(contentTypes(), content) {
			return formatError("invalid content type '%s'", content)
		}
	}
	return nil
}

func (cfg Storage) toRow(digest string) map[string]any {
	out := map[string]any{
		"storage": cfg.Name, "type": cfg.Type, "content": strings.Join(cfg.Content, ","), "digest": digest,
	}
	switch cfg.Type {
	case "dir", "nfs", "cifs":
		out["path"] = cfg.dir()
	case "lvmthin":
		out["vgname"], out["thinpool"] = "pve", "data"
	case "zfspool", "rbd":
		out["pool"] = cfg.Name
	}
	if cfg.Shared {
		out["shared"] = 1
	}
	if cfg.Disabled {
		out["disable"] = 1
	}
	if len(cfg.Nodes) > 0 {
		out["nodes"] = strings.Join(cfg.Nodes, ",")
	}
	return out
}

func (s *Server) computeStorageDigest() string {
	sum := sha1.Sum(fmt.Append(nil, s.model.Storages)) // #nosec G401 -- the digest algorithm of Proxmox VE
	return hex.EncodeToString(sum[:])
}

func listStorageConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		if s.hasAnyPrivilege(c.auth, "/storage/"+cfg.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
			out = append(out, cfg.toRow(s.computeStorageDigest()))
		}
	}
	return out, nil
}

func getStorageConfig(s *Server, c *call) (any, error) {
	i := slices.IndexFunc(s.model.Storages, func(cfg Storage) bool { return cfg.Name == c.vars["storage"] })
	if i < 0 {
		return nil, dief("storage '%s' does not exist", c.vars["storage"])
	}
	return s.model.Storages[i].toRow(s.computeStorageDigest()), nil
}

// findStorageConfig returns the position of a storage in storage.cfg, or -1. The caller holds s.mu.
func (s *Server) findStorageConfig(name string) int {
	return slices.IndexFunc(s.model.Storages, func(cfg Storage) bool { return cfg.Name == name })
}

// newStorageResult returns what Proxmox VE returns after a change of storage.cfg.
func (cfg Storage) newStorageResult() map[string]any {
	return map[string]any{"storage": cfg.Name, "type": cfg.Type}
}

// createStorage adds a storage, which is empty on each of its nodes.
func createStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := c.applyStorage(Storage{Name: c.param("storage"), Type: c.param("type"), Path: c.param("path")})
	switch {
	case s.findStorageConfig(cfg.Name) >= 0:
		return nil, dief("create storage failed: storage ID '%s' already defined", cfg.Name)
	case cfg.Type == "dir" && cfg.Path == "":
		return nil, dief("missing value for required option 'path'")
	}
	if len(cfg.Content) == 0 {
		cfg.Content = []string{"images", "rootdir"}
	}
	s.model.Storages = append(slices.Clone(s.model.Storages), cfg)
	s.addStores(cfg)
	return cfg.newStorageResult(), nil
}

// canHold returns whether storages of the type can hold a content type.
func (cfg Storage) canHold(content string) bool {
	switch cfg.Type {
	case "lvmthin", "rbd", "zfspool":
		return content == "images" || content == "rootdir"
	default:
		return true
	}
}

// applyStorage sets the fields of a storage that the call has.
func (c *call) applyStorage(cfg Storage) Storage {
	if c.hasParam("content") {
		// Types that the storage cannot hold are left out with a warning (PVE::Storage::Plugin, decode_value).
		cfg.Content = slices.DeleteFunc(splitTags(c.param("content")), func(content string) bool { return !cfg.canHold(content) })
	}
	if c.hasParam("nodes") {
		cfg.Nodes = splitTags(c.param("nodes"))
	}
	if c.hasParam("disable") {
		cfg.Disabled = c.boolParam("disable")
	}
	if c.hasParam("shared") {
		cfg.Shared = c.boolParam("shared")
	}
	return cfg
}

func updateStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.findStorageConfig(c.vars["storage"])
	if i < 0 {
		return nil, dief("update storage failed: storage '%s' does not exist", c.vars["storage"])
	}
	s.model.Storages = slices.Clone(s.model.Storages)
	cfg := c.applyStorage(s.model.Storages[i])
	s.model.Storages[i] = cfg
	for key, st := range s.stores {
		if key.name == cfg.Name {
			st.Storage = cfg
		}
	}
	return cfg.newStorageResult(), nil
}

// deleteStorage removes a storage from storage.cfg. Its volumes stay where they are, out of reach.
func deleteStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.findStorageConfig(c.vars["storage"])
	if i < 0 {
		return nil, dief("delete storage failed: storage '%s' does not exist", c.vars["storage"])
	}
	name := c.vars["storage"]
	s.model.Storages = slices.Delete(slices.Clone(s.model.Storages), i, i+1)
	for key := range s.stores {
		if key.name == name {
			delete(s.stores, key)
		}
	}
	return nil, nil //nolint:nilnil // "data": null
}

var reAllocSize = regexp.MustCompile(`^\d+[MG]?$`)

// allocVolume creates a disk image. Its size is in KiB unless it has a unit.
func allocVolume(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findEnabledStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	name := c.param("filename")
	if st.isFileBased() {
		name = c.param("vmid") + "/" + name
	}
	size := parseSize(c.param("size"))
	if !strings.ContainsAny(c.param("size"), "MG") {
		size = parseSize(c.param("size") + "K")
	}
	v := &volume{
		id: st.Name + ":" + name, content: "images", format: cmp.Or(c.param("format"), "raw"), size: size, used: size,
		ctime: s.clk.Now(), vmid: c.intParam("vmid"),
	}
	if st.vols[v.id] != nil {
		return nil, dief("disk image '%s' already exists", st.path(v.id))
	}
	st.addVolume(v)
	return v.id, nil
}

func checkAllocSize(v string) error {
	if !reAllocSize.MatchString(v) {
		return errors.New("value does not match the regex pattern")
	}
	return nil
}
