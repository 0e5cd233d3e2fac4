// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"bytes"
	"cmp"
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
	"strings"
	"time"
)

func storageRoutes() []route {
	base := "/nodes/{node}/storage"
	one := base + "/{storage}"
	access := requireAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	list := schema{
		"content": {check: checkContentList}, "storage": {check: checkStorageID}, "enabled": {kind: kBool}, "target": {},
		"format": {kind: kBool},
	}
	content := schema{"content": {check: checkContentList}, "vmid": newVMIDParam()}
	alloc := schema{
		"vmid": {kind: kInt, required: true, check: checkVMID}, "filename": {required: true},
		"size":   {required: true, check: checkAllocSize},
		"format": {enum: []string{"raw", "qcow2", "subvol", "vmdk"}},
	}
	up := schema{
		"content": {required: true, check: checkUploadContent}, "filename": {required: true, maxLen: 255},
		"checksum":           {requires: "checksum-algorithm"},
		"checksum-algorithm": {enum: []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}},
	}
	return []route{
		newRoute(http.MethodGet, base, ClassListing, nil, list, listStorage),
		newRoute(http.MethodGet, one+"/status", ClassListing, access, nil, getStorageStatus),
		newRoute(http.MethodGet, one+"/content", ClassListing, access, content, listContent),
		newRoute(http.MethodPost, one+"/content", ClassStorage,
			requireAll("/storage/{storage}", "Datastore.AllocateSpace"), alloc, allocVolume),
		newRoute(http.MethodGet, one+"/content/{volume...}", ClassListing, nil, nil, getVolume),
		newRoute(http.MethodDelete, one+"/content/{volume...}", ClassStorage, nil, schema{"delay": {kind: kInt, min: 1, max: 30}},
			deleteVolume).asTask(),
		newRoute(http.MethodPost, one+"/upload", ClassStorage,
			requireAll("/storage/{storage}", "Datastore.AllocateTemplate"), up, uploadFile).asTask(),
	}
}

// checkUploadContent checks the content type of an upload.
func checkUploadContent(v string) error {
	if err := checkContentList(v); err != nil {
		return err
	}
	if uploads := []string{"iso", "vztmpl", "import"}; !slices.Contains(uploads, v) {
		return fmt.Errorf("value '%s' does not have a value in the enumeration '%s'", v, strings.Join(uploads, ", "))
	}
	return nil
}

func listStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name := c.param("storage"); name != "" && s.findStorageConfig(name) < 0 {
		return nil, newParamError("storage", "No such storage.")
	}
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		st, err := s.findStore(c.node, cfg.Name)
		if target := c.param("target"); target != "" && target != c.node && (!cfg.Shared || s.nodes[target] == nil) {
			continue
		}
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
		if c.boolParam("format") {
			row["format"], row["formats"] = st.describeFormats()
		}
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

// describeFormats returns the formats of images on a storage: as a list for older clients, and by name.
func (st *store) describeFormats() ([]any, map[string]any) {
	names := []string{"raw", "subvol"}
	if st.isFileBased() {
		names = []string{"qcow2", "raw", "subvol", "vmdk"}
	}
	set := map[string]int{}
	for _, name := range names {
		set[name] = 1
	}
	return []any{set, "raw"}, map[string]any{"default": "raw", "supported": names}
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
	if err := s.checkImageLocks(st); err != nil {
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

// checkImageLocks returns an error if QEMU locks the images of running VMs. The caller holds s.mu.
func (s *Server) checkImageLocks(st *store) error {
	if !s.model.isMissing(MissingQEMUPatches) || !st.isFileBased() {
		return nil
	}
	for _, v := range st.vols {
		if m := s.vms[v.vmid]; m != nil && m.running && v.format == "qcow2" {
			return dief("%s", describeImageLock(st.path(v.id)))
		}
	}
	return nil
}

// describeImageLock returns what qemu-img says about an image that a process has locked.
func describeImageLock(path string) string {
	return fmt.Sprintf("qemu-img: Could not open '%s': Failed to get shared \"write\" lock\n"+
		"Is another process using the image [%s]?", path, path)
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
			out["parent"] = v.formatParent()
		}
	}
	return out
}

// formatParent returns the base of a linked clone: its path for a file, else its name.
func (v *volume) formatParent() string {
	_, name, _ := splitVolid(v.parent)
	if v.format == "qcow2" {
		return "../" + name
	}
	return name
}

// checkVolumePermission implements PVE::Storage::check_volume_access. With Datastore.Allocate on the storage, a caller
// can use all of its volumes. An image otherwise requires Datastore.Audit, and VM.Config.Disk on its VM. Any other
// volume requires Datastore.AllocateSpace or Datastore.Audit.
func (s *Server) checkVolumePermission(caller identity, v *volume) error {
	name, _, _ := splitVolid(v.id)
	path := "/storage/" + name
	switch {
	case s.requireLocked(caller, path, "Datastore.Allocate") == nil:
		return nil
	case v.content != "images":
		return s.requireAnyLocked(caller, path, "Datastore.AllocateSpace", "Datastore.Audit")
	case v.vmid == 0:
		return dief("missing privileges to access %s", v.id)
	}
	if err := s.requireLocked(caller, path, "Datastore.Audit"); err != nil {
		return err
	}
	return s.requireLocked(caller, vmPath(v.vmid), "VM.Config.Disk")
}

var reImageOwner = regexp.MustCompile(`(?:vm|base)-(\d+)-[^/]*$`)

// parseVolume returns what the id of a volume says about it, whether it exists or not.
func parseVolume(volid string) *volume {
	v := &volume{id: volid, content: "images"}
	_, name, _ := splitVolid(volid)
	if kind, _, ok := strings.Cut(name, "/"); ok && slices.Contains(contentTypes(), kind) {
		v.content = kind
	} else if owner := reImageOwner.FindStringSubmatch(name); owner != nil {
		v.vmid = atoi(owner[1])
	}
	return v
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
	if err := s.checkVolid(c); err != nil {
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
	format := v.format
	if v.content == "iso" {
		format = "raw"
	}
	return map[string]any{"path": st.path(v.id), "size": v.size, "used": v.used, "format": format}, nil
}

// deleteVolume deletes an ISO, a template archive or an image, which requires Datastore.Allocate
// (PVE::API2::Storage::Content). Proxmox VE does not check whether an ISO is in the CD drive of a
// VM. A running VM keeps the ISO open, and a stopped VM fails to start. Deleting a missing volume
// succeeds.
func deleteVolume(s *Server, c *call) (any, error) {
	if err := s.checkVolid(c); err != nil {
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
		t.log = append(t.log, "disk image '"+st.path(c.volid())+"' does not exist")
	} else if st.Type != "lvmthin" && st.isBaseInUse(v.id) {
		_, name, _ := splitVolid(v.id)
		return dief("base volume '%s' is still in use by linked clones", name)
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

// reDirVolume matches the names of volumes on a file-based storage (PVE::Storage::Plugin::parse_volname).
var reDirVolume = regexp.MustCompile(`^(?:(?:iso|vztmpl|snippets|backup|import)/[^/]+|(?:\d+/[^/]+/)?\d+/[^/]+)$`)

// checkVolumeName refuses names that cannot be volumes of a file-based storage. The caller holds s.mu.
func (s *Server) checkVolumeName(volid string) error {
	sid, name, _ := splitVolid(volid)
	if i := s.findStorageConfig(sid); i >= 0 && s.model.Storages[i].isFileBased() && !reDirVolume.MatchString(name) {
		return dief("unable to parse directory volume name '%s'", name)
	}
	return nil
}

// checkVolid refuses the volume id of another storage, and names that cannot be volumes.
func (s *Server) checkVolid(c *call) error {
	sid, _, ok := splitVolid(c.volid())
	if ok && sid != c.vars["storage"] {
		return newParamError("volume", "storage ID mismatch (%s != %s)\n", sid, c.vars["storage"])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkVolumeName(c.volid())
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
	case s.model.isMissing(MissingSSH):
		s.mu.Lock()
		address := s.nodeAddress(c.node)
		s.mu.Unlock()
		return dief("can't activate storage '%s' on node '%s': command '/usr/bin/ssh -o 'BatchMode=yes' -o 'HostKeyAlias=%s' %s "+
			"-- /usr/sbin/pvesm status --storage %s' failed: exit code 255\n", st.Name, c.node, c.node, address, st.Name)
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
	data, file := c.upload.data, "/var/tmp/pveupload-"+c.upload.id
	s.printf(t, "starting file import from: %s", file)
	if c.param("content") == "import" && strings.HasSuffix(name, ".qcow2") && !bytes.HasPrefix(data, []byte("QFI\xfb")) {
		s.printf(t, "command '/usr/bin/qemu-img info '--output=json' %s -f qcow2' failed: exit code 1", file)
		return dief("qemu-img: Could not open '%s': Image is not in qcow2 format", file)
	}
	if algo := c.param("checksum-algorithm"); algo != "" {
		if got := computeChecksum(algo, data); !strings.EqualFold(got, c.param("checksum")) {
			s.printf(t, "calculating checksum...")
			return dief("checksum mismatch: got '%s' != expect '%s'", got, c.param("checksum"))
		}
		s.printf(t, "calculating checksum...OK, checksum verified")
	}
	target := st.path(st.Name + ":" + c.param("content") + "/" + name)
	s.printf(t, "target node: %s", cmp.Or(st.key.node, t.node))
	s.printf(t, "target file: %s", target)
	s.printf(t, "file size is: %d", len(data))
	s.printf(t, "command: cp -- %s %s", file, target)
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
		return dief("import failed: cp: error writing '%s': No space left on device", target)
	}
	st.addVolume(&volume{id: id, content: c.param("content"), format: c.param("content"), size: size, used: size,
		ctime: s.clk.Now(), data: data})
	t.log = append(t.log, "finished file import successfully")
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
