// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// rootClient runs the commands of messages as root.
type rootClient struct {
	*pvetest.Root

	t      *testing.T
	server *pve.Server
	// hasRole is true once the role of the commands exists.
	hasRole bool
}

func logInAsRoot(t *testing.T, s *pve.Server) *rootClient {
	t.Helper()

	return &rootClient{Root: pvetest.LogIn(t, s), t: t, server: s}
}

// commandPattern matches a command of a node in a message.
var commandPattern = regexp.MustCompile(`qm (set|template|unlock|destroy) (\d+)((?: --\w+(?: [^-&\s]\S*)?)*)`)

// grantPattern matches the commands that grant privileges.
var grantPattern = regexp.MustCompile(
	`pveum role add (\S+) --privs "([^"]+)" .*pveum role modify .*--append.* && pveum acl modify (\S+)((?: --\w+ '[^']+')+) --roles`)

// grant runs the commands that grant privileges, and returns false if the text names none.
func (c *rootClient) grant(text string) bool {
	c.t.Helper()

	words := grantPattern.FindStringSubmatch(text)
	if words == nil {
		return false
	}

	if c.hasRole {
		c.Do(http.MethodPut, "/access/roles/"+words[1], url.Values{"privs": {words[2]}, "append": {"1"}})
	} else {
		c.Do(http.MethodPost, "/access/roles", url.Values{"roleid": {words[1]}, "privs": {words[2]}})
	}

	c.hasRole = true

	form := url.Values{"path": {words[3]}, "roles": {words[1]}}

	options := strings.Fields(words[4])
	for i := 0; i+1 < len(options); i += 2 {
		form.Set(strings.TrimPrefix(options[i], "--"), strings.Trim(options[i+1], "'"))
	}

	c.Do(http.MethodPut, "/access/acl", form)

	return true
}

// run runs the commands in the text of an error, and fails the test if it has none.
func (c *rootClient) run(text string) {
	c.t.Helper()

	if c.grant(text) {
		return
	}

	commands := commandPattern.FindAllStringSubmatch(text, -1)
	if len(commands) == 0 {
		c.t.Fatalf("the error names no command: %s", text)
	}

	for _, command := range commands {
		id, _ := strconv.Atoi(command[2])
		path := "/nodes/" + c.nodeOf(id) + "/qemu/" + command[2]

		switch command[1] {
		case "set":
			form := url.Values{}
			words := strings.Fields(command[3])

			for i := 0; i+1 < len(words); i += 2 {
				form.Set(strings.TrimPrefix(words[i], "--"), words[i+1])
			}

			c.Do(http.MethodPut, path+"/config", form)
		case "template":
			c.Do(http.MethodPost, path+"/template", nil)
		case "unlock":
			c.server.SetLock(id, "")
		case "destroy":
			c.Do(http.MethodDelete, path, url.Values{"purge": {"1"}})
		}
	}

	timing.WaitUntil(c.t, "the commands' tasks have ended", func() bool {
		return !slices.ContainsFunc(c.server.Snapshot().Tasks, func(task pve.TaskState) bool { return task.Exit == "" })
	})
}

func (c *rootClient) nodeOf(id int) string {
	c.t.Helper()

	for _, vm := range c.server.Snapshot().VMs {
		if vm.VMID == id {
			return vm.Node
		}
	}

	c.t.Fatalf("there is no VM %d", id)

	return ""
}

// TestFixesOfTemplates runs the command that each error of a template names, until the template can be used.
func TestFixesOfTemplates(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	root, p := logInAsRoot(t, s), connect(t, s)
	want := newSpec(1)

	found, err := p.Resolve(t.Context(), want.Template, want.Shape)
	if err != nil {
		t.Fatal(err)
	}

	id := found[0].ID
	config := "/nodes/" + root.nodeOf(id) + "/qemu/" + strconv.Itoa(id) + "/config"

	for reason, breakTemplate := range map[string]func() hypervisor.TemplateRef{
		"TemplateWithoutAgent": func() hypervisor.TemplateRef {
			root.Do(http.MethodPut, config, url.Values{"agent": {"0"}})

			return hypervisor.TemplateRef{ID: id}
		},
		"NotATemplate": func() hypervisor.TemplateRef { return hypervisor.TemplateRef{ID: 101} },
	} {
		ref := breakTemplate()

		for attempt := 0; ; attempt++ {
			_, err := connect(t, s).Resolve(t.Context(), ref, want.Shape)
			if err == nil {
				break
			}

			t.Log(err)

			if attempt == 0 && !strings.Contains(reason, reasonOf(err)) {
				t.Errorf("%s: the first error is %v", reason, err)
			}

			if attempt > 8 {
				t.Fatalf("%s: after %d commands: %v", reason, attempt, err)
			}

			root.run(err.Error())
		}
	}
}

// TestFixesOfChangedTemplates runs the command that the error of a machine names whose template was changed after it was
// checked. The next machine can be created.
func TestFixesOfChangedTemplates(t *testing.T) {
	t.Parallel()

	const drive = "cdrom,media=cdrom"

	for reason, tc := range map[string]struct {
		config map[string]string
		source string
	}{
		"NoDriveForISO":    {map[string]string{"ide2": drive, "ide0": drive, "sata5": drive}, hypervisor.SourceNoCloud},
		"NoCloudInitDrive": {nil, hypervisor.SourceBuiltin},
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Nodes, m.VMs = m.Nodes[:1], m.VMs[:1]
			m.Templates = slices.Clone(m.Templates)
			m.Templates[0].NoCloudInit, m.Templates[0].Config = true, tc.config

			s := pvetest.New(t, m)
			p := connect(t, s)
			want := newSpec(1)
			want.Shape.CloudInitSource, want.Standby = tc.source, true

			_, err := conformance.Create(t.Context(), p, &want, seed)
			if reasonOf(err) != reason {
				t.Fatalf("want the reason %s, got %v", reason, err)
			}

			remove(t, p, want)
			logInAsRoot(t, s).run(err.Error())

			_, want = create(t, p, want)
			remove(t, p, want)
			expectNothingLeft(t, s)
		})
	}
}

// contentPattern matches the command that allows a content type on a storage.
var contentPattern = regexp.MustCompile(`pvesm set (\S+) --content ([\w,.]*\w)`)

// TestFixesOfStorages runs the command that the error of a storage names. There is no command if the storage cannot hold
// what is missing.
func TestFixesOfStorages(t *testing.T) {
	t.Parallel()

	const (
		disks = "disks"
		isos  = "ISOs"
		// anyISOs means that the configuration names no storage for ISOs, so the message has words in place of the names.
		anyISOs = "ISOs on any storage"
	)

	for name, tc := range map[string]struct {
		kind       string
		content    []string
		use        string
		hasCommand bool
	}{
		"disks on a directory":         {"dir", []string{"vztmpl"}, disks, true},
		"disks on a directory of ISOs": {"dir", []string{"iso", "snippets"}, disks, true},
		"ISOs on a directory":          {"dir", []string{"images"}, isos, true},
		"ISOs on an LVM pool":          {"lvmthin", []string{"images", "rootdir"}, isos, false},
		"ISOs on no storage":           {"dir", []string{"images"}, anyISOs, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			const storage = "data"

			m := fastModel()
			if tc.use == anyISOs {
				for i := range m.Storages {
					m.Storages[i].Content = slices.DeleteFunc(slices.Clone(m.Storages[i].Content), func(c string) bool { return c == "iso" })
				}
			}

			m.Storages = append(slices.Clone(m.Storages), pve.Storage{Name: storage, Type: tc.kind, Content: tc.content, Size: 100 * gib})
			grant(&m, "/storage/"+storage, "HyperFleetISO")

			s := pvetest.New(t, m)
			root := logInAsRoot(t, s)

			use := func(c *hypervisor.Config, _ *hypervisor.Options) {
				switch tc.use {
				case disks:
					c.DefaultStorage = storage
				case isos:
					c.ISOStorage = storage
				case anyISOs:
					c.ISOStorage = ""
				}
			}

			err := connectError(t, s, use)
			if err == nil {
				t.Fatal("the storage is used")
			}

			command := contentPattern.FindStringSubmatch(err.Error())
			if (command != nil) != tc.hasCommand {
				t.Fatalf("the error is %v, want a command: %t", err, tc.hasCommand)
			}

			if !tc.hasCommand {
				// Proxmox VE would accept the command and leave the type out.
				root.Do(http.MethodPut, "/storage/"+storage, url.Values{"content": {strings.Join(append(tc.content, "iso"), ",")}})

				if connectError(t, s, use) == nil {
					t.Error("the storage holds ISOs, so the error should have a command")
				}

				return
			}

			names := strings.NewReplacer("STORAGE", storage, "...", strings.Join(tc.content, ","))
			root.Do(http.MethodPut, "/storage/"+names.Replace(command[1]), url.Values{"content": {names.Replace(command[2])}})

			if err := connectError(t, s, use); err != nil {
				t.Errorf("after %s: %v", command[0], err)
			}
		})
	}
}

// TestFixOfLockedMachine runs the commands that the error of a locked machine names.
func TestFixOfLockedMachine(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())
	root, p := logInAsRoot(t, s), connect(t, s)
	made, want := create(t, p, newSpec(1))

	s.PowerOff(made.ID)
	s.SetLock(made.ID, "backup")

	p = connect(t, s)

	var failure error

	timing.WaitUntil(t, "the error of a locked machine", func() bool {
		failure = p.Delete(t.Context(), newRef(want))

		return reasonOf(failure) == "VMLocked"
	})
	root.run(failure.Error())
	remove(t, connect(t, s), want)
	expectNothingLeft(t, s)
}

func reasonOf(err error) string {
	if e, ok := errors.AsType[*hypervisor.Error](err); ok {
		return e.Reason
	}

	return ""
}
