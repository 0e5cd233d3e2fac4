// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"crypto/md5"  // #nosec G501 -- offered by the API
	"crypto/sha1" // #nosec G505 -- offered by the API
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
	see := needsAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	list := schema{
		"content": {}, "storage": {}, "enabled": {kind: kBool}, "target": {}, "format": {kind: kBool},
	}
	content := schema{"content": {}, "vmid": vmidParam()}
	up := schema{
		"content": {required: true, enum: []string{"iso", "vztmpl", "import"}}, "filename": {required: true, maxLen: 255},
		"checksum": {}, "checksum-algorithm": {enum: []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}},
	}
	return []route{
		newRoute(http.MethodGet, base, ClassListing, nil, list, listStorage),
		newRoute(http.MethodGet, one+"/status", ClassListing, see, nil, storageStatus),
		newRoute(http.MethodGet, one+"/content", ClassListing, see, content, listContent),
		newRoute(http.MethodGet, one+"/content/{volume...}", ClassListing, nil, nil, volumeInfo),
		newRoute(http.MethodDelete, one+"/content/{volume...}", ClassStorage, nil, schema{"delay": {kind: kInt, min: 1, max: 30}},
			deleteVolume).async(),
		newRoute(http.MethodPost, one+"/upload", ClassStorage,
			needs("/storage/{storage}", "Datastore.AllocateTemplate"), up, uploadFile).async(),
	}
}

func listStorage(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		st, err := s.storeOn(c.node, cfg.Name)
		if err != nil || c.has("storage") && c.param("storage") != cfg.Name || c.flag("enabled") && cfg.Disabled {
			continue
		}
		if want := c.param("content"); want != "" && !slices.ContainsFunc(strings.Split(want, ","), st.holds) {
			continue
		}
		path := "/storage/" + cfg.Name
		if s.mayLocked(c.auth, path, "Datastore.Audit") != nil && s.mayLocked(c.auth, path, "Datastore.AllocateSpace") != nil {
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
		"shared": flag(st.Shared), "enabled": flag(!st.Disabled), "active": flag(!st.Disabled && !st.down),
		"total": size, "used": used, "avail": max(0, size-used),
	}
	if size > 0 {
		out["used_fraction"] = float64(used) / float64(size)
	}
	return out
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func storageStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.storeOn(c.node, c.vars["storage"])
	if err != nil {
		return nil, badParam("storage", "No such storage.")
	}
	out := st.describe()
	delete(out, "used_fraction")
	return out, nil
}

func listContent(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.enabledStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(st.vols)) {
		v := st.vols[id]
		if c.has("content") && c.param("content") != v.content || c.has("vmid") && c.num("vmid") != v.vmid {
			continue
		}
		if s.maySee(c.auth, v) != nil {
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

// maySee is PVE::Storage::check_volume_access: ISOs need any right on the
// storage, images belong to whoever may allocate there.
func (s *Server) maySee(who identity, v *volume) error {
	name, _, _ := splitVolid(v.id)
	path := "/storage/" + name
	if v.content == "images" {
		if v.vmid != 0 && s.mayLocked(who, vmPath(v.vmid), "VM.Config.Disk") == nil {
			return nil
		}
		return s.mayLocked(who, path, "Datastore.Allocate")
	}
	return s.mayAnyLocked(who, path, "Datastore.AllocateSpace", "Datastore.Audit")
}

// volid completes what the path says: the storage may be left out.
func (c *call) volid() string {
	v := c.vars["volume"]
	if !strings.Contains(v, ":") {
		return c.vars["storage"] + ":" + v
	}
	return v
}

func volumeInfo(s *Server, c *call) (any, error) {
	if err := c.checkVolid(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.enabledStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	v := st.vols[c.volid()]
	if v == nil {
		return nil, dief("volume_size_info on '%s' failed - no format", c.volid())
	}
	if err := s.maySee(c.auth, v); err != nil {
		return nil, err
	}
	return map[string]any{
		"path": "/sim/" + v.id, "size": v.size, "used": v.used, "format": v.format,
	}, nil
}

// deleteVolume removes an ISO, a template archive or an image, which all need
// Datastore.Allocate (PVE::API2::Storage::Content). Proxmox does not ask
// whether a VM has an ISO in its drive: a running VM keeps it open, a stopped
// one will not start. What is not there is removed with success.
func deleteVolume(s *Server, c *call) (any, error) {
	if err := c.checkVolid(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	st, err := s.enabledStore(c.node, c.vars["storage"])
	if err == nil {
		err = s.mayLocked(c.auth, "/storage/"+st.Name, "Datastore.Allocate")
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	id := st.Name
	if vmid := s.ownerOf(st, c.volid()); vmid != 0 {
		id = fmt.Sprintf("%d@%s", vmid, st.Name)
	}
	upid, err := s.fork(c, "imgdel", id, func(_ context.Context, t *task) error { return s.freeListed(c, t, st) })
	if err != nil || !c.has("delay") {
		return upid, err
	}
	return s.awaitTask(c, upid, time.Duration(c.num("delay"))*time.Second)
}

func (s *Server) freeListed(c *call, t *task, st *store) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := st.vols[c.volid()]
	if v == nil {
		t.log = append(t.log, "disk image '"+c.volid()+"' does not exist")
	} else if st.Type != "lvmthin" && st.baseInUse(v.id) {
		_, name, _ := splitVolid(v.id)
		return dief("base volume '%s' is still in use by linked cloned", name)
	}
	if v != nil {
		st.drop(v)
	}
	t.log = append(t.log, "Removed volume '"+c.volid()+"'")
	return nil
}

// awaitTask waits up to d: null when the task is done, its error, or its UPID.
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

func (s *Server) ownerOf(st *store, volid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := st.vols[volid]; v != nil {
		return v.vmid
	}
	return 0
}

// checkVolid refuses a volume id of another storage.
func (c *call) checkVolid() error {
	if sid, _, ok := splitVolid(c.volid()); ok && sid != c.vars["storage"] {
		return badParam("volume", "storage ID mismatch (%s != %s)", sid, c.vars["storage"])
	}
	return nil
}

var (
	reFileChars = regexp.MustCompile(`[^A-Za-z0-9._-]`)
	reISOName   = regexp.MustCompile(`(?i)[^/]+\.(?:iso|img)$`)
	reTarName   = regexp.MustCompile(`[^/]+\.tar\.(?:gz|xz|zst|bz2)$`)
)

// normalName is PVE::Storage::normalize_content_filename.
func normalName(name string) string {
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	return reFileChars.ReplaceAllString(strings.Trim(name, " \t"), "_")
}

// uploadFile stores what the request's file part held. The task runs on the
// node that took the request, not on the one the file goes to.
func uploadFile(s *Server, c *call) (any, error) {
	if c.upload == nil {
		return nil, dief("missing temporary file name")
	}
	if c.has("checksum") != c.has("checksum-algorithm") {
		return nil, badParam("checksum", "missing property - 'checksum-algorithm' requires this property")
	}
	target := c.node
	s.mu.Lock()
	st, err := s.enabledStore(target, c.vars["storage"])
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if !st.fileBased() {
		return nil, dief("can't upload to storage type '%s'", st.Type)
	}
	content, name := c.param("content"), normalName(c.upload.filename)
	re := reISOName
	if content == "vztmpl" {
		re = reTarName
	}
	if content != "import" && !re.MatchString(name) {
		return nil, badParam("filename", "wrong file extension")
	}
	if !st.holds(content) {
		return nil, dief("storage '%s' does not support '%s' content", st.Name, content)
	}
	if err := s.passOn(c, st); err != nil {
		return nil, err
	}
	c.node = s.entry()
	return s.fork(c, "imgcopy", "", func(ctx context.Context, t *task) error {
		return s.importUpload(ctx, c, t, st, name)
	})
}

// uploadCut is how long pveproxy leaves the connection of an upload open without an answer.
const uploadCut = 5 * time.Second

// passOn reaches the node that an uploaded file is for, by SSH from the one that is asked: a node
// that does not answer keeps it busy until the connection is closed, unanswered
// (PVE::API2::Storage::Status, PVE::APIServer::AnyEvent).
func (s *Server) passOn(c *call, st *store) error {
	s.mu.Lock()
	n, here := s.nodes[c.node], s.entryNode()
	lost, apart := n.trouble == FaultNodeLost, n.apart()
	s.mu.Unlock()
	wait := s.model.Delays.SSH
	switch {
	case c.node == here:
		return nil
	case lost:
		return dief("can't activate storage '%s' on node '%s': command '/usr/bin/ssh' failed: exit code 255", st.Name, c.node)
	case apart:
		wait = s.model.Outage.Timeout
	}
	if !s.sleep(c.ctx, min(wait, uploadCut)) || apart || wait >= uploadCut {
		return errGone
	}
	return nil
}

func (s *Server) importUpload(ctx context.Context, c *call, t *task, st *store, name string) error {
	data := c.upload.data
	if algo := c.param("checksum-algorithm"); algo != "" {
		if got := checksum(algo, data); !strings.EqualFold(got, c.param("checksum")) {
			return dief("checksum mismatch: got '%s' != expect '%s'", got, c.param("checksum"))
		}
	}
	s.printf(t, "file size is: %s", strconv.Itoa(len(data)))
	if !s.sleep(ctx, s.model.Delays.Upload) {
		return dief("import failed: interrupted by signal")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[st.key.node]; n != nil && n.trouble == FaultNodeLost {
		return dief("import failed: command '/usr/bin/scp' failed: exit code 255")
	}
	id := st.Name + ":" + c.param("content") + "/" + name
	used := st.usedBytes()
	if old := st.vols[id]; old != nil {
		used -= old.used
	}
	size := int64(len(data))
	if struck(t.faults, FaultStorageFull) != nil || st.Size > 0 && used+size > st.Size {
		return dief("import failed: cp: error writing '/var/lib/vz/template/iso/%s': No space left on device", name)
	}
	st.add(&volume{id: id, content: c.param("content"), format: c.param("content"), size: size, used: size,
		ctime: s.clk.Now(), data: data})
	return nil
}

func checksum(algo string, data []byte) string {
	hashes := map[string]func() hash.Hash{
		"md5": md5.New, "sha1": sha1.New, "sha224": sha256.New224, "sha256": sha256.New,
		"sha384": sha512.New384, "sha512": sha512.New,
	}
	h := hashes[algo]()
	_, _ = h.Write(data)
	return hex.EncodeToString(h.Sum(nil))
}
