// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"crypto/md5"  // #nosec G501 -- an algorithm of the API
	"crypto/sha1" // #nosec G505 -- an algorithm of the API
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func storageRoutes() []route {
	base := "/nodes/{node}/storage"
	one := base + "/{storage}"
	access := requireAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	list := schema{
		"content": {}, "storage": {}, "enabled": {kind: kBool}, "target": {}, "format": {kind: kBool},
	}
	content := schema{"content": {}, "vmid": newVMIDParam()}
	up := schema{
		"content": {required: true, enum: []string{"iso", "vztmpl", "import"}}, "filename": {required: true, maxLen: 255},
		"checksum": {}, "checksum-algorithm": {enum: []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}},
	}
	return []route{
		newRoute(http.MethodGet, base, ClassListing, nil, list, listStorage),
		newRoute(http.MethodGet, one+"/status", ClassListing, access, nil, getStorageStatus),
		newRoute(http.MethodGet, one+"/content", ClassListing, access, content, listContent),
		newRoute(http.MethodGet, one+"/content/{volume...}", ClassListing, nil, nil, getVolume),
		newRoute(http.MethodDelete, one+"/content/{volume...}", ClassStorage, nil, schema{"delay": {kind: kInt, min: 1, max: 30}},
			deleteVolume).asTask(),
		newRoute(http.MethodPost, one+"/upload", ClassStorage,
			requireAll("/storage/{storage}", "Datastore.AllocateTemplate"), up, uploadFile).asTask(),
	}
}

func listStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		st, err := s.findStore(c.node, cfg.Name)
		if err != nil || c.hasParam("storage") && c.param("storage") != cfg.Name || c.boolParam("enabled") && cfg.Disabled {
			continue
		}
		if want := c.param("content"); want != "" && !slices.ContainsFunc(strings.Split(want, ","), st.canHold) {
			continue
		}
		path := "/storage/" + cfg.Name
		if s.requireLocked(c.auth, path, "Datastore.Audit") != nil && s.requireLocked(c.auth, path, "Datastore.AllocateSpace") != nil {
			continue
		}
		row := st.describe()
		row["storage"] = cfg.Name
		out = append(out, row)
	}
	return out, nil
}

func (st *store) describe() map[string]any {
	used, size := st.usedBytes(), st.Size
	if st.down {
		used, size = 0, 0
	}
	out := map[string]any{
		"type": st.Type, "content": strings.Join(slices.Sorted(slices.Values(st.Content)), ","),
		"shared": boolToInt(st.Shared), "enabled": boolToInt(!st.Disabled), "active": boolToInt(!st.Disabled && !st.down),
		"total": size, "used": used, "avail": max(0, size-used),
	}
	if size > 0 {
		out["used_fraction"] = float64(used) / float64(size)
	}
	return out
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

func getStorageStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, newParamError("storage", "No such storage.")
	}
	out := st.describe()
	delete(out, "used_fraction")
	return out, nil
}

func listContent(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findEnabledStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(st.vols)) {
		v := st.vols[id]
		if c.hasParam("content") && c.param("content") != v.content || c.hasParam("vmid") && c.intParam("vmid") != v.vmid {
			continue
		}
		if s.checkVolumePermission(c.auth, v) != nil {
			continue
		}
		out = append(out, v.describe())
	}
	return out, nil
}

func (v *volume) describe() map[string]any {
	out := map[string]any{
		"volid": v.id, "content": v.content, "format": v.format, "size": v.size, "ctime": v.ctime.Unix(),
	}
	if v.vmid != 0 {
		out["vmid"] = v.vmid
	}
	if v.content == "images" {
		out["used"], out["parent"] = v.used, nil
		if v.parent != "" {
			out["parent"] = v.parent
		}
	}
	return out
}

// checkVolumePermission implements PVE::Storage::check_volume_access. An image requires
// VM.Config.Disk on its VM, or else Datastore.Allocate on the storage. Any other volume requires
// Datastore.AllocateSpace or Datastore.Audit on the storage.
func (s *Server) checkVolumePermission(caller identity, v *volume) error {
	name, _, _ := splitVolid(v.id)
	path := "/storage/" + name
	if v.content == "images" {
		if v.vmid != 0 && s.requireLocked(caller, vmPath(v.vmid), "VM.Config.Disk") == nil {
			return nil
		}
		return s.requireLocked(caller, path, "Datastore.Allocate")
	}
	return s.requireAnyLocked(caller, path, "Datastore.AllocateSpace", "Datastore.Audit")
}

// volid returns the volume id of the call's path, in which the storage is optional.
func (c *call) volid() string {
	v := c.vars["volume"]
	if !strings.Contains(v, ":") {
		return c.vars["storage"] + ":" + v
	}
	return v
}

func getVolume(s *Server, c *call) (any, error) {
	if err := c.checkVolid(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findEnabledStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	v := st.vols[c.volid()]
	if v == nil {
		return nil, dief("volume_size_info on '%s' failed - no format", c.volid())
	}
	if err := s.checkVolumePermission(c.auth, v); err != nil {
		return nil, err
	}
	return map[string]any{
		"path": "/sim/" + v.id, "size": v.size, "used": v.used, "format": v.format,
	}, nil
}

// deleteVolume deletes an ISO, a template archive or an image, which requires Datastore.Allocate
// (PVE::API2::Storage::Content). Proxmox VE does not check whether an ISO is in the CD drive of a
// VM. A running VM keeps the ISO open, and a stopped VM fails to start. Deleting a missing volume
// succeeds.
func deleteVolume(s *Server, c *call) (any, error) {
	if err := c.checkVolid(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	st, err := s.findEnabledStore(c.node, c.vars["storage"])
	if err == nil {
		err = s.requireLocked(c.auth, "/storage/"+st.Name, "Datastore.Allocate")
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	id := st.Name
	if vmid := s.findVolumeOwner(st, c.volid()); vmid != 0 {
		id = fmt.Sprintf("%d@%s", vmid, st.Name)
	}
	upid, err := s.fork(c, "imgdel", id, func(_ context.Context, t *task) error { return s.freeVolumeInTask(c, t, st) })
	if err != nil || !c.hasParam("delay") {
		return upid, err
	}
	return s.awaitTask(c, upid, time.Duration(c.intParam("delay"))*time.Second)
}

func (s *Server) freeVolumeInTask(c *call, t *task, st *store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := st.vols[c.volid()]
	if v == nil {
		t.log = append(t.log, "disk image '"+c.volid()+"' does not exist")
	} else if st.Type != "lvmthin" && st.isBaseInUse(v.id) {
		_, name, _ := splitVolid(v.id)
		return dief("base volume '%s' is still in use by linked cloned", name)
	}
	if v != nil {
		st.removeVolume(v)
	}
	t.log = append(t.log, "Removed volume '"+c.volid()+"'")
	return nil
}

// awaitTask waits up to d for the end of a task. It returns null if the task was successful, the
// error if it failed, and the UPID if it still runs.
func (s *Server) awaitTask(c *call, upid any, d time.Duration) (any, error) {
	s.mu.Lock()
	t := s.tasks[c.upid]
	s.mu.Unlock()
	timer := s.clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return upid, nil
	case <-t.done:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.exit != taskOK {
		return nil, dief("%s", t.exit)
	}
	return nil, nil //nolint:nilnil // "data": null
}

func (s *Server) findVolumeOwner(st *store, volid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := st.vols[volid]; v != nil {
		return v.vmid
	}
	return 0
}

// checkVolid refuses the volume id of another storage.
func (c *call) checkVolid() error {
	if sid, _, ok := splitVolid(c.volid()); ok && sid != c.vars["storage"] {
		return newParamError("volume", "storage ID mismatch (%s != %s)", sid, c.vars["storage"])
	}
	return nil
}

var (
	reFileChars = regexp.MustCompile(`[^A-Za-z0-9._-]`)
	reISOName   = regexp.MustCompile(`(?i)[^/]+\.(?:iso|img)$`)
	reTarName   = regexp.MustCompile(`[^/]+\.tar\.(?:gz|xz|zst|bz2)$`)
)

// normalizeFileName implements PVE::Storage::normalize_content_filename.
func normalizeFileName(name string) string {
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	return reFileChars.ReplaceAllString(strings.Trim(name, " \t"), "_")
}

// uploadFile stores the file of a request. The task runs on the entry node, even if the file belongs
// to another node.
func uploadFile(s *Server, c *call) (any, error) {
	if c.upload == nil {
		return nil, dief("missing temporary file name")
	}
	if c.hasParam("checksum") != c.hasParam("checksum-algorithm") {
		return nil, newParamError("checksum", "missing property - 'checksum-algorithm' requires this property")
	}
	target := c.node
	s.mu.Lock()
	st, err := s.findEnabledStore(target, c.vars["storage"])
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !st.isFileBased() {
		return nil, dief("can't upload to storage type '%s'", st.Type)
	}
	content, name := c.param("content"), normalizeFileName(c.upload.filename)
	re := reISOName
	if content == "vztmpl" {
		re = reTarName
	}
	if content != "import" && !re.MatchString(name) {
		return nil, newParamError("filename", "wrong file extension")
	}
	if !st.canHold(content) {
		return nil, dief("storage '%s' does not support '%s' content", st.Name, content)
	}
	if err := s.forwardUpload(c, st); err != nil {
		return nil, err
	}
	c.node = s.getEntryNode()
	return s.fork(c, "imgcopy", "", func(ctx context.Context, t *task) error {
		return s.importUpload(ctx, c, t, st, name)
	})
}

// uploadTimeout is how long pveproxy keeps the connection of an upload open without a response.
const uploadTimeout = 5 * time.Second

// forwardUpload simulates the SSH connection from the entry node to the node of an uploaded file. If
// that node does not respond, the entry node waits until the connection of the upload is closed
// without a response (PVE::API2::Storage::Status, PVE::APIServer::AnyEvent).
func (s *Server) forwardUpload(c *call, st *store) error {
	s.mu.Lock()
	n, entry := s.nodes[c.node], s.findEntryNode()
	isLost, isIsolated := n.fault == FaultNodeLost, n.isIsolated()
	s.mu.Unlock()
	wait := s.model.Delays.SSH
	switch {
	case c.node == entry:
		return nil
	case isLost:
		return dief("can't activate storage '%s' on node '%s': command '/usr/bin/ssh' failed: exit code 255", st.Name, c.node)
	case isIsolated:
		wait = s.model.Outage.Timeout
	}
	if !s.sleep(c.ctx, min(wait, uploadTimeout)) || isIsolated || wait >= uploadTimeout {
		return errClientGone
	}
	return nil
}

func (s *Server) importUpload(ctx context.Context, c *call, t *task, st *store, name string) error {
	data := c.upload.data
	if algo := c.param("checksum-algorithm"); algo != "" {
		if got := computeChecksum(algo, data); !strings.EqualFold(got, c.param("checksum")) {
			return dief("checksum mismatch: got '%s' != expect '%s'", got, c.param("checksum"))
		}
	}
	s.printf(t, "file size is: %s", strconv.Itoa(len(data)))
	if !s.sleep(ctx, s.model.Delays.Upload) {
		return dief("import failed: interrupted by signal")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[st.key.node]; n != nil && n.fault == FaultNodeLost {
		return dief("import failed: command '/usr/bin/scp' failed: exit code 255")
	}
	id := st.Name + ":" + c.param("content") + "/" + name
	used := st.usedBytes()
	if old := st.vols[id]; old != nil {
		used -= old.used
	}
	size := int64(len(data))
	if findFault(t.faults, FaultStorageFull) != nil || st.Size > 0 && used+size > st.Size {
		return dief("import failed: cp: error writing '/var/lib/vz/template/iso/%s': No space left on device", name)
	}
	st.addVolume(&volume{id: id, content: c.param("content"), format: c.param("content"), size: size, used: size,
		ctime: s.clk.Now(), data: data})
	return nil
}

func computeChecksum(algo string, data []byte) string {
	hashes := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New,
		"sha384": sha512.New384, "sha512": sha512.New,
	}
	h := hashes[algo]()
	_, _ = h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}
