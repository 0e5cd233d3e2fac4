// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/luthermonson/go-proxmox"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// callTimeout is longer than the 30 s after which Proxmox reports that a node did not respond to the
	// connected node.
	callTimeout   = 40 * time.Second
	uploadTimeout = 2 * time.Minute
)

// call sends one request with a timeout. The method and the path are as in Proxmox VE's API viewer. The params
// are sent in the query of GET and DELETE, and in the body of POST and PUT. out can be nil.
func (c *client) call(ctx context.Context, operation, method, path string, params map[string]string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()

	if len(params) > 0 && (method == http.MethodGet || method == http.MethodDelete) {
		query := url.Values{}
		for k, v := range params {
			query.Set(k, v)
		}

		path += "?" + query.Encode()
		params = nil
	}

	err := c.withSession(ctx, func(api *proxmox.Client) error {
		switch method {
		case http.MethodGet:
			return api.Get(ctx, path, out)
		case http.MethodPost:
			return api.Post(ctx, path, nonNilParams(params), out)
		case http.MethodPut:
			return api.Put(ctx, path, nonNilParams(params), out)
		default:
			return api.Delete(ctx, path, out)
		}
	})

	return c.classify(operation, method, err)
}

// newNoDataError returns the error of a read that succeeded without the data that it must return. What it reads is
// then unknown, and not absent.
func newNoDataError(operation string) error {
	return hypervisor.Errorf(hypervisor.Unavailable, "NoData",
		"%s: the response has status 200 and no data: check what answers at the endpoint", operation)
}

// nonNilParams returns an empty map instead of a nil map, so that each POST and PUT has a body.
func nonNilParams(params map[string]string) any {
	if params == nil {
		return map[string]string{}
	}

	return params
}

// upload sends a file to a storage and returns the UPID of the task that moves the file to its final place.
func (c *client) upload(ctx context.Context, operation, path, name string, content []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()

	var upid string

	// The library's upload method takes no context, so an interceptor adds the context to the request.
	withContext := proxmox.WithRequestInterceptor(func(req *http.Request) error {
		*req = *req.WithContext(ctx)

		return nil
	})

	err := c.withSession(ctx, func(api *proxmox.Client) error {
		return api.UploadReader(path, map[string]string{"content": "iso"}, name,
			bytes.NewReader(content), int64(len(content)), &upid)
	}, withContext)

	return upid, c.classify(operation, http.MethodPost, err)
}

// The methods below are the API calls of this package. Each one is documented on its page of the API viewer
// (https://pve.proxmox.com/pve-docs/api-viewer/).

// flag is a boolean as Proxmox writes it: 1, "1", true or absent.
type flag bool

// UnmarshalJSON decodes each notation of a boolean that Proxmox uses.
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
	Template flag   `json:"template"`
	MaxMem   int64  `json:"maxmem"`
	// MaxCPU is the number of cores. Containers may have fractions of a core.
	MaxCPU float64 `json:"maxcpu"`
	// HAState is set for machines that the HA manager manages.
	HAState string `json:"hastate"`
}

// vmsByID is a list of the cluster's VMs by their IDs.
type vmsByID map[int]resource

// UnmarshalJSON decodes one VM after the other, because a slice of ten thousand would need as much memory as the result.
func (l *vmsByID) UnmarshalJSON(raw []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))

	switch start, err := decoder.Token(); {
	case err != nil:
		return err
	case start == nil: // null
		return nil
	case start != json.Delim('['):
		return fmt.Errorf("decode list of machines: it begins with %v and is no list", start)
	}

	const size = 400 // bytes of one VM

	*l = make(vmsByID, len(raw)/size)

	for decoder.More() {
		var vm resource
		if err := decoder.Decode(&vm); err != nil {
			return err
		}

		(*l)[vm.VMID] = vm
	}

	return nil
}

func (c *client) listVMs(ctx context.Context) (vmsByID, error) {
	var out vmsByID

	err := c.call(ctx, "list machines", http.MethodGet, "/cluster/resources", map[string]string{"type": "vm"}, &out)
	if err == nil && out == nil {
		err = newNoDataError("list machines")
	}

	return out, err
}

// nodeInfo is one entry of /nodes.
type nodeInfo struct {
	Node   string  `json:"node"`
	Status string  `json:"status"`
	MaxCPU float64 `json:"maxcpu"`
	MaxMem int64   `json:"maxmem"`
}

func (n nodeInfo) isOnline() bool { return n.Status == "online" }

// statusStale is the status of a node, and of the machines on the node, if the cluster receives no status
// reports from the node. In that case pvestatd on the node hangs, often on a storage that does not respond,
// or has not reported yet. Before the status becomes stale, a node's machines keep their last status for
// five minutes (pmxcfs, status.c).
const statusStale = "unknown"

// isOffline reports whether the cluster lists a node as offline. A node that is neither online nor offline
// may still respond.
func (n nodeInfo) isOffline() bool { return n.Status == "offline" }

// statusUnresponsive is the status that this package sets for a node that is online and does not respond.
const statusUnresponsive = "silent"

// unusableReason returns the reason why a node is not used, or "" if the node is online.
func (n nodeInfo) unusableReason() string {
	switch n.Status {
	case "online":
		return ""
	case statusStale:
		return "reports no status (check whether pvestatd runs on the node or hangs on a storage)"
	case statusUnresponsive:
		return "does not respond"
	default:
		return "is " + n.Status
	}
}

func (c *client) listNodes(ctx context.Context) ([]nodeInfo, error) {
	var out []nodeInfo

	err := c.call(ctx, "list nodes", http.MethodGet, "/nodes", nil, &out)
	if err == nil && len(out) == 0 {
		err = newNoDataError("list nodes")
	}

	return out, err
}

// listedTask is one entry of /nodes/{node}/tasks. Status is the exit status. It is empty or RUNNING while
// the task runs.
type listedTask struct {
	UPID    string `json:"upid"`
	Type    string `json:"type"`
	ID      string `json:"id"`
	User    string `json:"user"`
	TokenID string `json:"tokenid"`
	Status  string `json:"status"`
	EndTime int64  `json:"endtime"`
	Start   int64  `json:"starttime"`
}

func (t listedTask) isDone() bool { return t.EndTime != 0 || t.Status != "" && t.Status != "RUNNING" }

// isStartedBy reports whether a principal started the task. A running task has the token's name in User. An
// ended task has the token's name in TokenID (PVE::API2::Tasks).
func (t listedTask) isStartedBy(principal string) bool {
	return t.User == principal || t.TokenID != "" && t.User+"!"+t.TokenID == principal
}

// maxTasks limits the number of tasks in one response. The watcher requests a task that the list omits by
// its UPID.
const maxTasks = 500

// listTasks returns the tasks of a node. /cluster/tasks lists the tasks of all nodes in one call, but shows
// a token its own tasks only if the token has Sys.Audit on / (PVE::API2::Cluster).
func (c *client) listTasks(ctx context.Context, operation, node string, filter map[string]string) ([]listedTask, error) {
	var out []listedTask

	filter["limit"] = strconv.Itoa(maxTasks)
	err := c.call(ctx, operation, http.MethodGet, "/nodes/"+url.PathEscape(node)+"/tasks", filter, &out)

	return out, err
}

// listTasksSince returns the running and the ended tasks of a node that started at or after a time of the
// node's clock, in seconds.
func (c *client) listTasksSince(ctx context.Context, node string, since int64) ([]listedTask, error) {
	return c.listTasks(ctx, "list the tasks of node "+node, node,
		map[string]string{"source": "all", "since": strconv.FormatInt(since, 10)})
}

func (c *client) listRunningTasks(ctx context.Context, node string) ([]listedTask, error) {
	all, err := c.listTasks(ctx, "list the running tasks of node "+node, node, map[string]string{"source": "active"})

	return slices.DeleteFunc(all, listedTask.isDone), err
}

// listTasksOfVM returns the tasks of a VM ID on a node, newest first.
func (c *client) listTasksOfVM(ctx context.Context, node string, id int) ([]listedTask, error) {
	out, err := c.listTasks(ctx, fmt.Sprintf("list the tasks of machine %d on node %s", id, node), node,
		map[string]string{"vmid": strconv.Itoa(id), "source": "all"})

	// The process start time in the UPID orders tasks of the same second.
	slices.SortStableFunc(out, func(a, b listedTask) int {
		return cmp.Or(cmp.Compare(b.Start, a.Start), cmp.Compare(startTicks(b.UPID), startTicks(a.UPID)))
	})

	return out, err
}

// readTaskLog returns the first 20 lines of a task's log.
func (c *client) readTaskLog(ctx context.Context, node, upid string) ([]string, error) {
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

// startTicks returns the start of a task's process in clock ticks since the boot of the node, or 0 if the
// UPID cannot be parsed.
func startTicks(upid string) uint64 {
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

func (c *client) readTaskStatus(ctx context.Context, node, upid string) (taskStatus, error) {
	var out taskStatus

	err := c.call(ctx, "read task "+upid, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/tasks/"+url.PathEscape(upid)+"/status", nil, &out)

	return out, err
}

func vmPath(node string, id int) string {
	return fmt.Sprintf("/nodes/%s/qemu/%d", url.PathEscape(node), id)
}

// readConfig returns the configuration of a machine. Numbers are converted to text.
func (c *client) readConfig(ctx context.Context, node string, id int) (vmConfig, error) {
	var raw map[string]any

	err := c.call(ctx, fmt.Sprintf("read configuration of machine %d on node %s", id, node), http.MethodGet,
		vmPath(node, id)+"/config", nil, &raw)
	if err != nil {
		return nil, err
	}

	out := vmConfig{}
	for name, value := range raw {
		out[name] = formatValue(value)
	}

	return out, nil
}

func formatValue(value any) string {
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

// writeConfig writes all options in one call. If the options contain a digest, Proxmox rejects the call
// after any change since the digest was read.
func (c *client) writeConfig(ctx context.Context, node string, id int, options map[string]string) error {
	return c.call(ctx, fmt.Sprintf("configure machine %d on node %s", id, node), http.MethodPut,
		vmPath(node, id)+"/config", options, nil)
}

func (c *client) cloneTemplate(ctx context.Context, node string, template int, params map[string]string) (string, error) {
	var upid string

	operation := fmt.Sprintf("clone template %d on node %s to %s", template, node, params["newid"])
	err := c.call(ctx, operation, http.MethodPost, vmPath(node, template)+"/clone", params, &upid)

	paths := []string{"/vms/" + params["newid"]}
	if pool := params["pool"]; pool != "" {
		paths = append(paths, "/pool/"+pool)
	}

	requirements := []requirement{
		{paths: []string{fmt.Sprintf("/vms/%d", template)}, privileges: []string{"VM.Clone"}},
		{paths: paths, privileges: []string{"VM.Allocate"}},
	}
	if storage := params["storage"]; storage != "" {
		requirements = append(requirements,
			requirement{paths: []string{"/storage/" + storage}, privileges: []string{"Datastore.AllocateSpace"}})
	}

	return upid, c.explainForbidden(ctx, operation, err, requirements...)
}

// resizeDisk grows a disk. Proxmox 8 and 9 return a task. Older versions return nothing, and then the UPID
// is "".
func (c *client) resizeDisk(ctx context.Context, node string, id int, slot, size string) (string, error) {
	var upid *string

	err := c.call(ctx, fmt.Sprintf("grow disk %s of machine %d on node %s to %s", slot, id, node, size), http.MethodPut,
		vmPath(node, id)+"/resize", map[string]string{"disk": slot, "size": size}, &upid)
	if err != nil || upid == nil {
		return "", err
	}

	return *upid, nil
}

// changePower starts or stops a machine. action is the last part of the API path, such as start or stop.
func (c *client) changePower(ctx context.Context, node string, id int, action string) (string, error) {
	var upid string

	err := c.call(ctx, fmt.Sprintf("%s machine %d on node %s", action, id, node), http.MethodPost,
		vmPath(node, id)+"/status/"+action, nil, &upid)

	return upid, err
}

type currentStatus struct {
	Status string `json:"status"`
}

func (c *client) readStatus(ctx context.Context, node string, id int) (currentStatus, error) {
	var out currentStatus

	operation := fmt.Sprintf("read status of machine %d on node %s", id, node)

	err := c.call(ctx, operation, http.MethodGet, vmPath(node, id)+"/status/current", nil, &out)
	if err == nil && out.Status == "" {
		err = newNoDataError(operation)
	}

	return out, err
}

func (c *client) destroyVM(ctx context.Context, node string, id int) (string, error) {
	var upid string

	err := c.call(ctx, fmt.Sprintf("destroy machine %d on node %s", id, node), http.MethodDelete,
		vmPath(node, id), map[string]string{"purge": "1", "destroy-unreferenced-disks": "1"}, &upid)

	return upid, err
}

type guestInterfaces struct {
	Result []hypervisor.GuestInterface `json:"result"`
}

func (c *client) listGuestInterfaces(ctx context.Context, node string, id int) (guestInterfaces, error) {
	var out guestInterfaces

	err := c.call(ctx, fmt.Sprintf("query the guest agent of machine %d on node %s", id, node), http.MethodGet,
		vmPath(node, id)+"/agent/network-get-interfaces", nil, &out)

	return out, err
}

// bridgeInfo is one entry of /nodes/{node}/network.
type bridgeInfo struct {
	Iface string `json:"iface"`
	Type  string `json:"type"`
}

func (c *client) listBridges(ctx context.Context, node string) ([]bridgeInfo, error) {
	var out []bridgeInfo

	err := c.call(ctx, "list bridges of node "+node, http.MethodGet,
		"/nodes/"+url.PathEscape(node)+"/network", map[string]string{"type": "any_bridge"}, &out)

	return out, err
}

// readPermissions returns the privileges of the client's principal.
func (c *client) readPermissions(ctx context.Context) (permissions, error) {
	var out permissions

	err := c.call(ctx, "read the permissions of "+c.principal(), http.MethodGet, "/access/permissions", nil, &out)

	return out, err
}

type versionInfo struct {
	Version string `json:"version"`
}

func (c *client) readVersion(ctx context.Context) (versionInfo, error) {
	var out versionInfo

	err := c.call(ctx, "read the version of "+c.host(), http.MethodGet, "/version", nil, &out)

	return out, err
}
