// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// storageInfo is one entry of /nodes/{node}/storage.
type storageInfo struct {
	Storage string `json:"storage"`
	Type    string `json:"type"`
	Content string `json:"content"`
	Shared  flag   `json:"shared"`
	Active  flag   `json:"active"`
	Enabled *flag  `json:"enabled"`
	Avail   int64  `json:"avail"`
	Total   int64  `json:"total"`
}

func (s storageInfo) hasContentType(content string) bool {
	return slices.Contains(strings.Split(s.Content, ","), content)
}

// explainHowToAllow returns the end of a message that a storage lacks a content type. It begins with a comma and names the
// command that allows the type, or is "" if storages of this kind cannot hold it (plugindata in pve-storage).
func (s storageInfo) explainHowToAllow(what, content string) string {
	isImages := content == "images"

	switch s.Type {
	case "lvm", "lvmthin", "rbd", "zfspool", "zfs", "iscsi", "iscsidirect":
		if !isImages {
			return ""
		}
	case "cephfs":
		if isImages {
			return ""
		}
	case "pbs", "esxi":
		return ""
	}

	all := content
	if s.Content != "" && s.Content != "none" { // none cannot be combined with other types
		all = s.Content + "," + content
	}

	return fmt.Sprintf(", or allow %s with: pvesm set %s --content %s", what, s.Storage, all)
}

// cloneQueueKey returns the name of the clone queue of the storage. The nodes share the queue of a shared
// storage. Every other storage has one queue per node.
func (s storageInfo) cloneQueueKey(node string) string {
	if s.Shared {
		return s.Storage
	}

	return node + "/" + s.Storage
}

func (s storageInfo) isUsable() bool { return bool(s.Active) && (s.Enabled == nil || bool(*s.Enabled)) }

// checkUsable returns an error if the storage cannot be used now.
func (s storageInfo) checkUsable() error {
	if s.isUsable() {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, reasonStorageInactive,
		"cannot use storage %s because the storage is not active", s.Storage)
}

func (c *client) listStorages(ctx context.Context, node string) ([]storageInfo, error) {
	var out []storageInfo

	err := c.call(ctx, "list storages of node "+node, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/storage", nil, &out)

	return out, err
}

type volume struct {
	VolID string `json:"volid"`
	CTime int64  `json:"ctime"`
}

func (v volume) createdAt() time.Time { return time.Unix(v.CTime, 0) }

func (c *client) listISOs(ctx context.Context, node, storage string) ([]volume, error) {
	var out []volume

	err := c.call(ctx, fmt.Sprintf("list ISOs of storage %s on node %s", storage, node), http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/content",
		map[string]string{"content": "iso"}, &out)

	return out, err
}

func (c *client) uploadISO(ctx context.Context, node, storage, name string, content []byte) (string, error) {
	operation := fmt.Sprintf("upload %s to storage %s on node %s", name, storage, node)
	upid, err := c.upload(ctx, operation,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/upload", name, content)

	return upid, c.explainForbidden(ctx, operation, err,
		requirement{paths: []string{"/storage/" + storage}, privileges: isoPrivileges()})
}

func (c *client) deleteVolume(ctx context.Context, node, volid string) (string, error) {
	storage, _, _ := strings.Cut(volid, ":")

	var upid *string

	operation := fmt.Sprintf("delete %s on node %s", volid, node)
	err := c.call(ctx, operation, http.MethodDelete,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/content/"+url.PathEscape(volid), nil, &upid)
	if err != nil || upid == nil {
		return "", c.explainForbidden(ctx, operation, err,
			requirement{paths: []string{"/storage/" + storage}, privileges: isoPrivileges()})
	}

	return *upid, nil
}
