// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The calls used, each after its page in the API viewer
// (https://pve.proxmox.com/pve-docs/api-viewer/).

// flag is a boolean as Proxmox writes it: 1, "1", true or absent.
type flag bool

// UnmarshalJSON reads any of Proxmox's ways to write a boolean.
func (f *flag) UnmarshalJSON(raw []byte) error {
	text := strings.Trim(string(raw), `"`)
	*f = text == "1" || text == "true"

	return nil
}

// resource is one entry of /cluster/resources?type=vm.
type resource struct {
	VMID     int    `json:"vmid"`
	Type     string `json:"type"`
	Node     string `json:"node"`
	Name     string `json:"name"`
	Status   string `json:"status"`
	Tags     string `json:"tags"`
	Lock     string `json:"lock"`
	Pool     string `json:"pool"`
	Template flag   `json:"template"`
	MaxMem   int64  `json:"maxmem"`
	MaxDisk  int64  `json:"maxdisk"`
	// MaxCPU is a number of cores; containers may have fractions.
	MaxCPU float64 `json:"maxcpu"`
	Uptime int64   `json:"uptime"`
	// HAState is set for machines that the HA manager looks after.
	HAState string `json:"hastate"`
}

func (c *client) resources(ctx context.Context) ([]resource, error) {
	var out []resource

	err := c.call(ctx, "list machines", http.MethodGet, "/cluster/resources", map[string]string{"type": "vm"}, &out)

	return out, err
}

// nodeInfo is one entry of /nodes.
type nodeInfo struct {
	Node    string  `json:"node"`
	Status  string  `json:"status"`
	MaxCPU  float64 `json:"maxcpu"`
	MaxMem  int64   `json:"maxmem"`
	MaxDisk int64   `json:"maxdisk"`
	Disk    int64   `json:"disk"`
}

func (n nodeInfo) online() bool { return n.Status == "online" }

// statusStale is the status of a node, and of the machines on it, of which the cluster
// has no news: pvestatd there hangs, often on a storage that does not answer, or has not
// reported yet. A node's machines keep their last status for five minutes before
// (pmxcfs, status.c).
const statusStale = "unknown"

// offline tells whether a node is not part of the cluster. One that is neither online nor
// offline may answer all the same.
func (n nodeInfo) offline() bool { return n.Status == "offline" }

// statusSilent is our own status of a node that is online and does not answer.
const statusSilent = "silent"

// trouble says why a node is not used, or nothing.
func (n nodeInfo) trouble() string {
	switch n.Status {
	case "online":
		return ""
	case statusStale:
		return "reports no status (see whether pvestatd runs there, or hangs on a storage)"
	case statusSilent:
		return "does not answer"
	default:
		return "is " + n.Status
	}
}

func (c *client) nodes(ctx context.Context) ([]nodeInfo, error) {
	var out []nodeInfo

	err := c.call(ctx, "list nodes", http.MethodGet, "/nodes", nil, &out)

	return out, err
}

// listedTask is one entry of /nodes/{node}/tasks: status is the exit status, empty or
// RUNNING while the task runs.
type listedTask struct {
	UPID    string `json:"upid"`
	Type    string `json:"type"`
	ID      string `json:"id"`
	Node    string `json:"node"`
	User    string `json:"user"`
	TokenID string `json:"tokenid"`
	Status  string `json:"status"`
	EndTime int64  `json:"endtime"`
	Start   int64  `json:"starttime"`
}

func (t listedTask) done() bool { return t.EndTime != 0 || t.Status != "" && t.Status != "RUNNING" }

// by tells whether a principal started the task. A running one names the token with its
// user, one that has ended apart (PVE::API2::Tasks).
func (t listedTask) by(who string) bool {
	return t.User == who || t.TokenID != "" && t.User+"!"+t.TokenID == who
}

// mostTasks bounds the answers about tasks. One that is left out is asked for by name.
const mostTasks = 500

// tasks gives a node's tasks. /cluster/tasks has them for all nodes at once, but shows a
// token its own only with Sys.Audit on / (PVE::API2::Cluster).
func (c *client) tasks(ctx context.Context, doing, node string, filter map[string]string) ([]listedTask, error) {
	var out []listedTask

	filter["limit"] = strconv.Itoa(mostTasks)
	err := c.call(ctx, doing, http.MethodGet, "/nodes/"+url.PathEscape(node)+"/tasks", filter, &out)

	return out, err
}

// tasksSince gives the running and the ended tasks of a node that were started at or
// after a moment of the node's clock, in seconds.
func (c *client) tasksSince(ctx context.Context, node string, since int64) ([]listedTask, error) {
	return c.tasks(ctx, "list the tasks of node "+node, node,
		map[string]string{"source": "all", "since": strconv.FormatInt(since, 10)})
}

// runningTasks gives the tasks of a node that run.
func (c *client) runningTasks(ctx context.Context, node string) ([]listedTask, error) {
	all, err := c.tasks(ctx, "list the running tasks of node "+node, node, map[string]string{"source": "active"})

	return slices.DeleteFunc(all, listedTask.done), err
}

// history gives the tasks about a machine's id on a node, newest first.
func (c *client) history(ctx context.Context, node string, id int) ([]listedTask, error) {
	out, err := c.tasks(ctx, fmt.Sprintf("list the tasks of machine %d on node %s", id, node), node,
		map[string]string{"vmid": strconv.Itoa(id), "source": "all"})

	// Within a second, the process start time in the name tells the order.
	slices.SortStableFunc(out, func(a, b listedTask) int {
		return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(ticksOf(b.UPID), ticksOf(a.UPID)))
	})

	return out, err
}

// taskLog gives the first lines of a task's log.
func (c *client) taskLog(ctx context.Context, node, upid string) ([]string, error) {
	var lines []struct {
		Text string `json:"t"`
	}

	err := c.call(ctx, "read the log of task "+upid, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/tasks/"+url.PathEscape(upid)+"/log", map[string]string{"limit": "20"}, &lines)

	out := make([]string, 0, len(lines))
	for _, line := range lines {
		out = append(out, line.Text)
	}

	return out, err
}

// ticksOf gives the start of a task's process in clock ticks since its node's boot.
func ticksOf(upid string) uint64 {
	parsed, err := ParseUPID(upid)
	if err != nil {
		return 0
	}

	return parsed.Ticks
}

type taskStatus struct {
	Status     string `json:"status"`
	ExitStatus string `json:"exitstatus"`
}

func (c *client) taskStatus(ctx context.Context, node, upid string) (taskStatus, error) {
	var out taskStatus

	err := c.call(ctx, "read task "+upid, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/tasks/"+url.PathEscape(upid)+"/status", nil, &out)

	return out, err
}

func vmPath(node string, id int) string {
	return fmt.Sprintf("/nodes/%s/qemu/%d", url.PathEscape(node), id)
}

// config reads a machine's configuration. Values that Proxmox gives as numbers are
// turned into text.
func (c *client) config(ctx context.Context, node string, id int) (vmConfig, error) {
	var raw map[string]any

	err := c.call(ctx, fmt.Sprintf("read configuration of machine %d on node %s", id, node), http.MethodGet,
		vmPath(node, id)+"/config", nil, &raw)
	if err != nil {
		return nil, err
	}

	out := vmConfig{}
	for name, value := range raw {
		out[name] = text(value)
	}

	return out, nil
}

func text(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	case nil:
		return ""
	default:
		return fmt.Sprint(v)
	}
}

// configure writes options at once; digest guards against changes in between.
func (c *client) configure(ctx context.Context, node string, id int, options map[string]string) error {
	return c.call(ctx, fmt.Sprintf("configure machine %d on node %s", id, node), http.MethodPut,
		vmPath(node, id)+"/config", options, nil)
}

func (c *client) clone(ctx context.Context, node string, template int, params map[string]string) (string, error) {
	var upid string

	doing := fmt.Sprintf("clone template %d on node %s to %s", template, node, params["newid"])
	err := c.call(ctx, doing, http.MethodPost, vmPath(node, template)+"/clone", params, &upid)

	places := []string{"/vms/" + params["newid"]}
	if pool := params["pool"]; pool != "" {
		places = append(places, "/pool/"+pool)
	}

	needs := []need{
		{any: []string{fmt.Sprintf("/vms/%d", template)}, privileges: []string{"VM.Clone"}},
		{any: places, privileges: []string{"VM.Allocate"}},
	}
	if storage := params["storage"]; storage != "" {
		needs = append(needs, need{any: []string{"/storage/" + storage}, privileges: []string{"Datastore.AllocateSpace"}})
	}

	return upid, c.explain(ctx, doing, err, needs...)
}

// resize grows a disk. Proxmox 8 and 9 answer with a task; older ones with nothing.
func (c *client) resize(ctx context.Context, node string, id int, slot, size string) (string, error) {
	var upid *string

	err := c.call(ctx, fmt.Sprintf("grow disk %s of machine %d on node %s to %s", slot, id, node, size), http.MethodPut,
		vmPath(node, id)+"/resize", map[string]string{"disk": slot, "size": size}, &upid)
	if err != nil || upid == nil {
		return "", err
	}

	return *upid, nil
}

// power starts or stops a machine.
func (c *client) power(ctx context.Context, node string, id int, action string) (string, error) {
	var upid string

	err := c.call(ctx, fmt.Sprintf("%s machine %d on node %s", action, id, node), http.MethodPost,
		vmPath(node, id)+"/status/"+action, nil, &upid)

	return upid, err
}

type currentStatus struct {
	Status string `json:"status"`
	Lock   string `json:"lock"`
	HA     struct {
		Managed flag `json:"managed"`
	} `json:"ha"`
}

func (c *client) status(ctx context.Context, node string, id int) (currentStatus, error) {
	var out currentStatus

	err := c.call(ctx, fmt.Sprintf("read status of machine %d on node %s", id, node), http.MethodGet,
		vmPath(node, id)+"/status/current", nil, &out)

	return out, err
}

func (c *client) destroy(ctx context.Context, node string, id int) (string, error) {
	var upid string

	err := c.call(ctx, fmt.Sprintf("destroy machine %d on node %s", id, node), http.MethodDelete,
		vmPath(node, id), map[string]string{"purge": "1", "destroy-unreferenced-disks": "1"}, &upid)

	return upid, err
}

type guestInterfaces struct {
	Result []struct {
		Name    string `json:"name"`
		MAC     string `json:"hardware-address"`
		Address []struct {
			IP   string `json:"ip-address"`
			Type string `json:"ip-address-type"`
		} `json:"ip-addresses"`
	} `json:"result"`
}

func (c *client) interfaces(ctx context.Context, node string, id int) (guestInterfaces, error) {
	var out guestInterfaces

	err := c.call(ctx, fmt.Sprintf("ask the guest agent of machine %d on node %s", id, node), http.MethodGet,
		vmPath(node, id)+"/agent/network-get-interfaces", nil, &out)

	return out, err
}

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

func (s storageInfo) holds(content string) bool {
	return slices.Contains(strings.Split(s.Content, ","), content)
}

// gate names what clones to the storage on the node wait for: the storage itself, which
// several nodes have where it is shared.
func (s storageInfo) gate(node string) string {
	if s.Shared {
		return s.Storage
	}

	return node + "/" + s.Storage
}

func (s storageInfo) usable() bool { return bool(s.Active) && (s.Enabled == nil || bool(*s.Enabled)) }

func (c *client) storages(ctx context.Context, node string) ([]storageInfo, error) {
	var out []storageInfo

	err := c.call(ctx, "list storages of node "+node, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/storage", nil, &out)

	return out, err
}

type volume struct {
	VolID string `json:"volid"`
	CTime int64  `json:"ctime"`
}

func (v volume) created() time.Time { return time.Unix(v.CTime, 0) }

func (c *client) isos(ctx context.Context, node, storage string) ([]volume, error) {
	var out []volume

	err := c.call(ctx, fmt.Sprintf("list ISOs of storage %s on node %s", storage, node), http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/content",
		map[string]string{"content": "iso"}, &out)

	return out, err
}

func (c *client) uploadISO(ctx context.Context, node, storage, name string, content []byte) (string, error) {
	doing := fmt.Sprintf("upload %s to storage %s on node %s", name, storage, node)
	upid, err := c.upload(ctx, doing,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/upload", name, content)

	return upid, c.explain(ctx, doing, err, need{any: []string{"/storage/" + storage}, privileges: isoPrivileges()})
}

func (c *client) deleteVolume(ctx context.Context, node, volid string) (string, error) {
	storage, _, _ := strings.Cut(volid, ":")

	var upid *string

	doing := fmt.Sprintf("delete %s on node %s", volid, node)
	err := c.call(ctx, doing, http.MethodDelete,
		"/nodes/"+url.PathEscape(node)+"/storage/"+url.PathEscape(storage)+"/content/"+url.PathEscape(volid), nil, &upid)
	if err != nil || upid == nil {
		return "", c.explain(ctx, doing, err, need{any: []string{"/storage/" + storage}, privileges: isoPrivileges()})
	}

	return *upid, nil
}

// bridgeInfo is one entry of /nodes/{node}/network.
type bridgeInfo struct {
	Iface string `json:"iface"`
	Type  string `json:"type"`
}

func (c *client) bridges(ctx context.Context, node string) ([]bridgeInfo, error) {
	var out []bridgeInfo

	err := c.call(ctx, "list bridges of node "+node, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/network", map[string]string{"type": "any_bridge"}, &out)

	return out, err
}

// permissions gives the principal's privileges.
func (c *client) permissions(ctx context.Context) (permissions, error) {
	var out permissions

	err := c.call(ctx, "read the permissions of "+c.who(), http.MethodGet, "/access/permissions", nil, &out)

	return out, err
}

type versionInfo struct {
	Version string `json:"version"`
	Release string `json:"release"`
}

func (c *client) version(ctx context.Context) (versionInfo, error) {
	var out versionInfo

	err := c.call(ctx, "read the version of "+c.host(), http.MethodGet, "/version", nil, &out)

	return out, err
}
