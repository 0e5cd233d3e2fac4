// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const testsGuide = "../../docs/guides/test-against-proxmox.md"

// nodeCommand is a command of a node of Proxmox VE, and the API call that it makes.
type nodeCommand struct {
	command, method, path string
	// arguments are the names of the arguments without a flag. Those that path does not contain are parameters.
	arguments []string
}

func listNodeCommands() []nodeCommand {
	return []nodeCommand{
		{"pvesh create", http.MethodPost, "{path}", []string{"{path}"}},
		{"pvesh delete", http.MethodDelete, "{path}", []string{"{path}"}},
		{"pvesm add", http.MethodPost, "/storage", []string{"type", "storage"}},
		{"pvesm remove", http.MethodDelete, "/storage/{storage}", []string{"{storage}"}},
		{"pveum role add", http.MethodPost, "/access/roles", []string{"roleid"}},
		{"pveum role delete", http.MethodDelete, "/access/roles/{role}", []string{"{role}"}},
		{"pveum user add", http.MethodPost, "/access/users", []string{"userid"}},
		{"pveum user delete", http.MethodDelete, "/access/users/{user}", []string{"{user}"}},
		{"pveum user token add", http.MethodPost, "/access/users/{user}/token/{token}", []string{"{user}", "{token}"}},
		{"pveum user token remove", http.MethodDelete, "/access/users/{user}/token/{token}", []string{"{user}", "{token}"}},
		{"pveum acl modify", http.MethodPut, "/access/acl", []string{"path"}},
		{"qm create", http.MethodPost, "/nodes/pve1/qemu", []string{"vmid"}},
		{"qm template", http.MethodPost, "/nodes/pve1/qemu/{vmid}/template", []string{"{vmid}"}},
		{"qm destroy", http.MethodDelete, "/nodes/pve1/qemu/{vmid}", []string{"{vmid}"}},
	}
}

// word matches a word of a command, which can have quotation marks.
var word = regexp.MustCompile(`"[^"]*"|\S+`)

// runOnNode runs a command of a node, waits for its task, and returns the response.
func runOnNode(t *testing.T, server *pve.Server, root *pvetest.Root, line string) []byte {
	t.Helper()

	commands := listNodeCommands()

	at := slices.IndexFunc(commands, func(c nodeCommand) bool { return strings.HasPrefix(line, c.command+" ") })
	if at < 0 {
		t.Fatalf("%s: the test does not know the command", line)
	}

	command, form := commands[at], url.Values{}
	path, arguments := command.path, command.arguments
	words := word.FindAllString(strings.TrimPrefix(line, command.command), -1)

	for i := 0; i < len(words); i++ {
		flag, isFlag := strings.CutPrefix(words[i], "--")

		switch {
		case isFlag && i+1 < len(words):
			i++
			form.Set(flag, strings.Trim(words[i], `"`))
		case isFlag || len(arguments) == 0:
			t.Fatalf("%s: unexpected %s", line, words[i])
		case strings.HasPrefix(arguments[0], "{"):
			path, arguments = strings.ReplaceAll(path, arguments[0], words[i]), arguments[1:]
		default:
			form.Set(arguments[0], words[i])
			arguments = arguments[1:]
		}
	}

	response := root.Do(command.method, path, form)

	timing.WaitUntil(t, "the command's task has ended", func() bool {
		return !slices.ContainsFunc(server.Snapshot().Tasks, func(task pve.TaskState) bool { return task.Exit == "" })
	})

	return response
}

// TestProxmoxTestGuide runs the commands that prepare a Proxmox VE for tests. With the accounts that they create, a machine
// can be created and deleted, and an administrator reads the state. The last commands remove everything.
func TestProxmoxTestGuide(t *testing.T) {
	t.Parallel()

	blocks := regexp.MustCompile("(?s)<!-- run: TestProxmoxTestGuide -->\n```sh\n(.*?)```").FindAllStringSubmatch(readFile(t, testsGuide), -1)
	if len(blocks) != 2 {
		t.Fatalf("the page has %d blocks of commands, want 2", len(blocks))
	}

	model := pve.DefaultModel()
	model.Nodes, model.StatusLag = model.Nodes[:1], 0
	model.Templates, model.VMs, model.Roles, model.Tokens, model.ACL, model.Pools = nil, nil, nil, nil, nil, nil
	model.Users = slices.DeleteFunc(slices.Clone(model.Users), func(u pve.User) bool { return u.ID != pve.RootUser })

	server := pvetest.New(t, model)
	root := pvetest.LogIn(t, server)
	lists := []string{"/access/users", "/access/acl", "/access/roles", "/pools", "/storage", "/nodes/pve1/qemu", "/access/users/root@pam/token"}
	before := map[string]string{}

	for _, path := range lists {
		before[path] = string(root.Do(http.MethodGet, path, nil))
	}

	secrets := map[string]string{}

	for line := range strings.Lines(blocks[0][1]) {
		var created struct {
			Data struct {
				ID    string `json:"full-tokenid"`
				Value string `json:"value"`
			} `json:"data"`
		}
		if response := runOnNode(t, server, root, strings.TrimSpace(line)); strings.Contains(line, " token add ") {
			if err := json.Unmarshal(response, &created); err != nil {
				t.Fatal(err)
			}

			secrets[created.Data.ID] = created.Data.Value
		}
	}

	const pool = true

	provider := connect(t, server, pool, secrets[pve.DefaultTokenID])

	info, err := provider.Check(t.Context())
	if err != nil || len(info.Warnings) > 0 {
		t.Fatalf("warnings %q, %v", info.Warnings, err)
	}

	createAndDelete(t, provider, hypervisor.TemplateRef{ID: 9000}, hypervisor.Shape{
		CPU: 1, Memory: gib / 2, Linked: true, Bridge: "vmbr0", CloudInitSource: hypervisor.SourceNoCloud,
	})

	if secrets["root@pam!tests"] == "" {
		t.Errorf("the commands have created no token of an administrator: %d tokens", len(secrets))
	}

	for line := range strings.Lines(blocks[1][1]) {
		runOnNode(t, server, root, strings.TrimSpace(line))
	}

	after := map[string]string{}
	for _, path := range lists {
		after[path] = string(root.Do(http.MethodGet, path, nil))
	}

	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the last commands leave (-before +after):\n%s", diff)
	}
}
