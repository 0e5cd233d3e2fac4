// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"time"
)

// cloudInitRoutes returns the calls for generated cloud-init media, for detaching disks, and for
// downloads.
func cloudInitRoutes() []route {
	vm := "/nodes/{node}/qemu/{vmid}"
	audit := requireAll("/vms/{vmid}", "VM.Audit")
	download := schema{
		"url": {required: true, check: checkURL}, "content": {required: true, enum: []string{"iso", "vztmpl", "import"}},
		"filename": {required: true, maxLen: 255}, "checksum": {requires: "checksum-algorithm"},
		"compression": {}, "verify-certificates": {kind: kBool},
		"checksum-algorithm": {enum: []string{"md5", "sha1", "sha224", "sha256", "sha384", "sha512"}},
	}
	return []route{
		newRoute(http.MethodGet, vm+"/cloudinit", ClassVM, audit, nil, getPendingCloudInit),
		newRoute(http.MethodPut, vm+"/cloudinit", ClassVM, requireAll("/vms/{vmid}", "VM.Config.Cloudinit"), nil, regenerateCloudInit),
		newRoute(http.MethodGet, vm+"/cloudinit/dump", ClassVM, audit,
			schema{"type": {required: true, enum: []string{"user", "network", "meta"}}}, dumpCloudInit),
		newRoute(http.MethodPut, vm+"/unlink", ClassVM, requireAll("/vms/{vmid}", "VM.Config.Disk"),
			schema{"idlist": {required: true}, "force": {kind: kBool}}, unlinkDisks),
		newRoute(http.MethodPost, "/nodes/{node}/storage/{storage}/download-url", ClassStorage, checkDownloadPermission, download,
			downloadURL).asTask(),
	}
}

func isCloudInitOption(k string) bool {
	o, ok := findOption(k)
	return ok && o.priv == "VM.Config.Cloudinit" && k != "ciupgrade" && !reIPConfig.MatchString(k)
}

// getPendingCloudInit lists the options from which a medium is generated.
func getPendingCloudInit(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(m.conf)) {
		if isCloudInitOption(k) {
			out = append(out, map[string]any{"key": k, "value": fmt.Sprint(encodeOption(k, m.conf[k]))})
		}
	}
	return out, nil
}

// regenerateCloudInit generates the cloud-init media of a VM again.
func regenerateCloudInit(s *Server, c *call) (any, error) {
	release, err := s.lockVM(c.ctx, c.vmid, 0, configLockWait)
	if err != nil {
		return nil, err
	}
	defer release()
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	for _, value := range selectDrives(m.conf) {
		d, err := parseDrive(value)
		if err != nil || !d.isCloudInit() {
			continue
		}
		if _, v := s.findVolume(m.node, d.file); v != nil {
			if err := s.writeCloudInit(m, v); err != nil {
				return nil, err
			}
		}
	}
	return nil, nil //nolint:nilnil // "data": null
}

// dumpCloudInit returns a generated file without regard to cicustom.
func dumpCloudInit(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	files := buildCloudInitFiles(m, nil)
	name := map[string]string{"user": "user-data", "network": "network-config", "meta": "meta-data"}[c.param("type")]
	return string(files[name]), nil
}

// unlinkDisks detaches drives. With force, it deletes the volumes of unused drives.
func unlinkDisks(s *Server, c *call) (any, error) {
	c.params = map[string]string{"delete": c.param("idlist"), "force": c.param("force")}
	if c.params["force"] == "" {
		delete(c.params, "force")
	}
	return putConfig(s, c)
}

func checkDownloadPermission(s *Server, c *call) error {
	if err := s.require(c.auth, "/storage/"+c.vars["storage"], "Datastore.AllocateTemplate"); err != nil {
		return err
	}
	return checkNetworkPermission(s, c)
}

// checkNetworkPermission checks the permission for calls that make a node send requests.
func checkNetworkPermission(s *Server, c *call) error {
	if s.requireAny(c.auth, "/nodes/"+c.vars["node"], "Sys.AccessNetwork") == nil ||
		s.require(c.auth, "/", "Sys.Audit", "Sys.Modify") == nil {
		return nil
	}
	return newPermissionError()
}

// downloadURL downloads a file to a storage. The URL must be reachable from the simulator.
func downloadURL(s *Server, c *call) (any, error) {
	s.mu.Lock()
	st, err := s.findEnabledStore(c.node, c.vars["storage"])
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	name := normalizeFileName(c.param("filename"))
	if c.param("content") == "iso" && !reISOName.MatchString(name) {
		return nil, newParamError("filename", "wrong file extension")
	}
	if !st.canHold(c.param("content")) {
		return nil, dief("storage '%s' is not configured for content-type '%s'", st.Name, c.param("content"))
	}
	return s.fork(c, "download", name, func(ctx context.Context, t *task) error {
		s.printf(t, "downloading %s to %s", c.param("url"), st.path(st.Name+":"+c.param("content")+"/"+name))
		s.printf(t, "--%s--  %s", s.clk.Now().UTC().Format(time.DateTime), c.param("url"))
		data, err := fetchURL(ctx, c.param("url"))
		var dial *net.OpError
		if errors.As(err, &dial) {
			return dief("download failed: Connecting to %s... failed: %s.", dial.Addr, describeDialError(err))
		}
		if err != nil {
			return dief("download failed: %s", err)
		}
		c.upload = &upload{filename: name, data: data}
		return s.importUpload(ctx, c, t, st, name)
	})
}

func fetchURL(ctx context.Context, url string) ([]byte, error) {
	res, err := openURL(ctx, http.MethodGet, url)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("unexpected response status %s", res.Status)
	}
	data, err := io.ReadAll(io.LimitReader(res.Body, isoMaxBytes+1))
	if err == nil && len(data) > isoMaxBytes {
		err = fmt.Errorf("more than %d bytes", isoMaxBytes)
	}
	return data, err
}
