// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// recordedResponse is what this test reads of a recorded exchange (package sim/pve/recordings).
type recordedResponse struct {
	As, Method, Path, Reason string
	Status                   int
	Body                     json.RawMessage
}

// ownCalls matches the calls that the client makes.
var ownCalls = regexp.MustCompile(`^(POST /nodes/[^/]+/qemu/\d+/(clone|status/(start|stop))|` +
	`(GET|PUT|POST) /nodes/[^/]+/qemu/\d+/config|PUT /nodes/[^/]+/qemu/\d+/resize|DELETE /nodes/[^/]+/qemu/\d+|` +
	`GET /nodes/[^/]+/qemu(/\d+/status/current)?|GET /nodes/[^/]+/qemu/\d+/agent/network-get-interfaces|` +
	`GET /nodes(/[^/]+/(version|status|network|tasks.*|storage))?|` +
	`(GET|POST|DELETE) /nodes/[^/]+/storage/[^/]+/(content.*|upload)|` +
	`GET /(cluster/resources|cluster/nextid|access/permissions|version|pools.*))$`)

// recordedError is a kind, a reason and the texts of the errors that have both.
type recordedError struct {
	kind   hypervisor.Kind
	reason string
	texts  []string
}

// recordedErrors has the kind and the reason of each error text that the operator's token got from a real
// Proxmox VE 9.2. A # stands for a number. An error without a kind is one of the caller, which the client never makes,
// or of a task whose step has a reason of its own.
var recordedErrors = []recordedError{
	{hypervisor.NotFound, reasonNotFound, []string{
		"Configuration file 'nodes/pve#/qemu-server/#.conf' does not exist",
		"unable to find configuration file for VM # on node 'pve#'",
	}},
	{hypervisor.IDTaken, reasonIDTaken, []string{
		"unable to create VM #: config file already exists",
		"close (rename) atomic file '/etc/pve/nodes/pve#/qemu-server/#.conf' failed: File exists",
	}},
	{hypervisor.Busy, reasonLocked, []string{
		"VM is locked (backup)",
		"VM is locked (snapshot)",
		"can't lock file '/var/lock/qemu-server/lock-#.conf' - got timeout",
	}},
	{hypervisor.Busy, reasonStillRunning, []string{
		"VM # is running - destroy failed",
	}},
	{hypervisor.Busy, reasonConflict, []string{
		"checksum mismatch (file change by other user?)",
	}},
	{hypervisor.Busy, reasonOverloaded, []string{
		"command '/usr/bin/qemu-img resize '--preallocation=metadata' -f qcow# " +
			"/var/lib/disks/images/#/vm-#-disk-#.qcow# #' failed: got timeout",
	}},
	{hypervisor.Unavailable, reasonNoQuorum, []string{
		"cluster not ready - no quorum?",
		"unable to open file '/etc/pve/nodes/pve#/qemu-server/#.conf.tmp.#' - Permission denied",
	}},
	{hypervisor.Unavailable, reasonNodeUnreachable, []string{
		"no such cluster node 'nosuch'",
		"no such cluster node 'pve#'",
		"hostname lookup 'X' failed - failed to get address info for: X",
		"can't activate storage 'hyperfleet-iso' on node 'pve#': command '/usr/bin/ssh' failed",
	}},
	{hypervisor.Rejected, reasonParameterRefused, []string{
		"only root can set an option",
		"balloon value too large (must be smaller than assigned memory)",
		"SSH public key validation error",
		"invalid bootorder: device 'scsi#' does not exist'",
		"cloud-init drive is already attached",
		"parameter 'format' not allowed for linked clones",
		"parameter 'storage' not allowed for linked clones",
		"can't clone VM to node 'pve#' (VM uses local storage)",
		"can't clone to non-shared storage 'disks'",
		"shrinking disks is not supported",
	}},
	{"", "", []string{
		"VM # already running",
		"VM # is not running",
		"QEMU guest agent is not running",
		"WARNINGS: #",
		"no options specified",
		"snapshot 'nosuch' does not exist",
		"storage 'nosuch' does not exist",
		"storage 'hyperfleet-iso' does not support 'vztmpl' content",
		"volume 'X' does not exist",
		"disk 'X' does not exist",
		"disk image 'X' already exists",
		"unable to parse a name",
		"volume_size_info on 'hyperfleet-iso:iso/zz.iso' failed - no format",
		"upload failed at /usr/share/perl#/PVE/APIServer/AnyEvent.pm line #.",
		"Only root can pass arbitrary filesystem paths. at /usr/share/perl#/PVE/Storage.pm line #.",
		"EFI vars image '/usr/share/pve-edk#-firmware//OVMF_VARS_#M.ms.fd' not found",
		"checksum mismatch: got 'X'",
	}},
}

// shortenings replace what names the object of an error.
var shortenings = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`^hostname lookup .*`), "hostname lookup 'X' failed - failed to get address info for: X"},
	{regexp.MustCompile(`^only root can .*`), "only root can set an option"},
	{regexp.MustCompile(`^.*cloud-init drive is already attached.*`), "cloud-init drive is already attached"},
	{regexp.MustCompile(`^unable to parse .*`), "unable to parse a name"},
	{regexp.MustCompile(`^(volume|disk) '.*' does not exist`), "$1 'X' does not exist"},
	{regexp.MustCompile(`^disk image '.*' already exists`), "disk image 'X' already exists"},
	{regexp.MustCompile(`^checksum mismatch: got .*`), "checksum mismatch: got 'X'"},
	{regexp.MustCompile(`command '/usr/bin/ssh .*`), "command '/usr/bin/ssh' failed"},
	{regexp.MustCompile(`\d+`), "#"},
}

func shorten(text string) string {
	for _, s := range shortenings {
		text = s.pattern.ReplaceAllString(text, s.text)
	}

	return text
}

// readRecordedErrors returns the responses to the operator's own calls that are errors, and the exit statuses of
// its tasks as responses with the status 500.
func readRecordedErrors(t *testing.T) []recordedResponse {
	t.Helper()

	files, err := filepath.Glob("../../sim/pve/recordings/testdata/proxmox-ve-9.2/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}

	var out []recordedResponse

	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}

		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 1<<20)

		for lines.Scan() {
			var r recordedResponse
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}

			var task struct {
				Data struct{ Type, ExitStatus string }
			}

			switch isOwn := r.As == "op" && ownCalls.MatchString(r.Method+" "+r.Path); {
			case !isOwn:
			case r.Status >= http.StatusBadRequest:
				out = append(out, r)
			case strings.HasSuffix(r.Path, "/status") && json.Unmarshal(r.Body, &task) == nil && task.Data.ExitStatus != "OK" &&
				task.Data.ExitStatus != "" && task.Data.Type != "qmshutdown" && task.Data.Type != "qmreboot":
				out = append(out, recordedResponse{Method: r.Method, Path: r.Path, Status: http.StatusInternalServerError,
					Reason: task.Data.ExitStatus})
			}
		}
	}

	return out
}

// The client reads each recorded error of its own calls as Proxmox VE sent it, and knows its kind, its reason and, for
// a missing privilege, the command that grants it.
func TestRecordedErrors(t *testing.T) {
	c := &client{base: "https://pve:8006/api2/json", credentials: hypervisor.Credentials{TokenID: "hyperfleet@pve!operator"}}
	met := map[string]bool{}

	for _, r := range readRecordedErrors(t) {
		apiErr := respond(t, r)
		err := c.classify("do it", r.Method, apiErr)
		got := hypervisor.KindOf(err)
		at := fmt.Sprintf("%s %s: %d %s", r.Method, r.Path, r.Status, r.Reason)

		if apiErr.Reason != r.Reason {
			t.Errorf("%s: read as %q", at, apiErr.Reason)
		}

		switch r.Status {
		case http.StatusBadRequest:
			if len(apiErr.Fields) == 0 && r.Reason != "Bad Request" {
				t.Errorf("%s: no parameter is named", at)
			}

			if got != hypervisor.Rejected && got != hypervisor.IDTaken {
				t.Errorf("%s: kind %q", at, got)
			}
		case http.StatusUnauthorized, http.StatusForbidden:
			isNamed := permissionPattern.MatchString(r.Reason)
			if got != hypervisor.Rejected || isNamed && !strings.Contains(err.Error(), "pveum acl modify") {
				t.Errorf("%s: kind %q, %v", at, got, err)
			}
		case statusProxyConnect, statusProxySend:
			if !hasReason(err, reasonNodeUnreachable) {
				t.Errorf("%s: %v", at, err)
			}
		case http.StatusNotImplemented:
			if !hasReason(err, reasonNotImplemented) {
				t.Errorf("%s: %v", at, err)
			}
		default:
			text := shorten(r.Reason)
			i := slices.IndexFunc(recordedErrors, func(row recordedError) bool { return slices.Contains(row.texts, text) })
			met[text] = true

			if i < 0 {
				t.Errorf("%s: kind %q, %v, not in the table: %q", at, got, err, text)
			} else if want := recordedErrors[i]; got != want.kind || want.reason != "" && !hasReason(err, want.reason) {
				t.Errorf("%s: kind %q, %v, want %q, %q", at, got, err, want.kind, want.reason)
			}
		}
	}

	for _, row := range recordedErrors {
		for _, text := range row.texts {
			if !met[text] {
				t.Errorf("no recording has %q", text)
			}
		}
	}
}

// respond sends a recorded response through the client's own reading of errors.
func respond(t *testing.T, r recordedResponse) *APIError {
	t.Helper()

	response := httptest.NewRecorder()
	_, _ = response.Write(r.Body)

	result := response.Result()
	result.Status, result.StatusCode = fmt.Sprintf("%d %s", r.Status, r.Reason), r.Status

	request, err := http.NewRequestWithContext(t.Context(), r.Method, "https://pve:8006/api2/json/", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	return readAPIError(request, result)
}
