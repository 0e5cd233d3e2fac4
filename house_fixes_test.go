// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// maxUnrunFixes is the number of commands in messages that no test runs. Never raise it.
const maxUnrunFixes = 0

// fixes names the test that runs each command that a message names, in the state in which the message appears, as
// FOLDER TEST. A value without a test is the reason why none runs the command.
func fixes() map[string]string {
	const (
		templates = "hypervisor/proxmox TestFixesOfTemplates"
		locked    = "hypervisor/proxmox TestFixOfLockedMachine"
		changed   = "hypervisor/proxmox TestFixesOfChangedTemplates"
		storages  = "hypervisor/proxmox TestFixesOfStorages"
		hosts     = "hypervisor/libvirt TestFixesOfHosts"
		volumes   = "hypervisor/libvirt TestFixesOfTemplates"
	)

	return map[string]string{
		"hosts/mac/readback.go: kubectl annotate scalewayapplesiliconmachine": "hosts TestMacsFromOlderBackups",
		"hosts/mac/release.go: kubectl patch scalewayapplesiliconmachine":     "hosts TestMacsWithoutKeyInDeletedNamespace",
		"hypervisor/external/answers.go: run `hyperfleet provider conform":    "cmd/hyperfleet TestProviderConformFails",
		"hypervisor/libvirt/check.go: virsh net-autostart":                    hosts,
		"hypervisor/libvirt/check.go: virsh net-define":                       hosts,
		"hypervisor/libvirt/check.go: virsh net-start":                        hosts,
		"hypervisor/libvirt/get.go: virsh resume":                             "hypervisor/libvirt TestFixOfFullPool",
		"hypervisor/libvirt/pool.go: virsh pool-autostart":                    hosts,
		"hypervisor/libvirt/pool.go: virsh pool-build":                        hosts,
		"hypervisor/libvirt/pool.go: virsh pool-define-as":                    hosts,
		"hypervisor/libvirt/pool.go: virsh pool-start":                        hosts,
		"hypervisor/libvirt/resolve.go: virsh pool-refresh":                   volumes,
		"hypervisor/libvirt/template.go: virsh pool-autostart":                volumes,
		"hypervisor/libvirt/template.go: virsh pool-define-as":                volumes,
		"hypervisor/libvirt/template.go: virsh pool-refresh":                  volumes,
		"hypervisor/libvirt/template.go: virsh pool-start":                    volumes,
		"hypervisor/libvirt/terminal.go: virsh console":                       "hypervisor/libvirt TestConsoleOfKeptMachines",
		"hypervisor/libvirt/terminal.go: virsh start":                         "hypervisor/libvirt TestConsoleOfKeptMachines",
		"hypervisor/proxmox/apierror.go: pveum acl modify":                    templates,
		"hypervisor/proxmox/apierror.go: pveum role add":                      templates,
		"hypervisor/proxmox/apierror.go: pveum role modify":                   templates,
		"hypervisor/proxmox/storage.go: pvesm set":                            storages,
		"hypervisor/proxmox/configure.go: qm set":                             changed,
		"hypervisor/proxmox/delete.go: ha-manager remove vm":                  "hypervisor/proxmox TestMachinesOfHAManagerAreRejected",
		"hypervisor/proxmox/making.go: qm destroy":                            locked,
		"hypervisor/proxmox/making.go: qm unlock":                             locked,
		"hypervisor/proxmox/provider.go: pvesm set":                           storages,
		"hypervisor/proxmox/resolve.go: qm set":                               templates,
		"hypervisor/proxmox/template.go: qm template":                         templates,
		"hypervisor/proxmox/terminal.go: qm start":                            "test/fleet TestFailedMachineIsKept",
		"hypervisor/proxmox/terminal.go: qm terminal":                         "test/fleet TestFailedMachineIsKept",
		"kit/step/outdated.go: kubectl apply":                                 "cmd/hyperfleet/operator TestOperatorNewerThanItsCRDs",
		"kit/keep/keep.go: kubectl -n %s edit secret":                         "kit TestKeeper",
		"networking/machine/readback.go: kubectl annotate virtualmachine":     "networking TestUnreadAddresses",
		"networking/machine/readback.go: kubectl get secret":                  "networking TestUnreadAddresses",
		"networking/machine/readback.go: kubectl get virtualmachineinstance":  "networking TestUnreadAddresses",
		"platform/adapter/resources/decide.go: kubectl delete":                "platform/adapter/resources TestForeignObjectsAreLeftAlone",
		"runners/machineclaim/keep.go: kubectl delete machineclaim":           "test/fleet TestFailedMachineIsKept",
		"runners/machineclaim/readback.go: kubectl annotate machineclaim":     "test/fleet TestUnknownAddressesOfMachine",
	}
}

// fixCommand is a command that a message tells a person to run. A verb follows the program.
var fixCommand = regexp.MustCompile(`\b(?:kubectl (?:-n %\w* )?|pveum |pvesm |ha-manager |qm )[a-z]+(?: [a-z]+\b)?|\bvirsh [a-z-]+` +
	"|run `hyperfleet [a-z]+(?: [a-z]+)?")

// TestFixesAreRun checks that each command in a message of a program has a row in fixes, and that its test exists.
func TestFixesAreRun(t *testing.T) {
	t.Parallel()

	rows, unrun := fixes(), 0

	for _, fix := range listFixes(t) {
		where, ok := rows[fix]
		if !ok {
			t.Errorf("fixes() has no row %q: name the test that runs the command, or the reason why none does", fix)

			continue
		}

		delete(rows, fix)

		if folder, test, isTest := strings.Cut(where, " Test"); !isTest || strings.Contains(folder, " ") {
			unrun++
		} else if !hasTest(t, folder, "Test"+test) {
			t.Errorf("%s: there is no Test%s in %s", fix, test, folder)
		}
	}

	for fix := range rows {
		t.Errorf("no message has the command %q", fix)
	}

	if unrun > maxUnrunFixes {
		t.Errorf("no test runs %d commands of messages, want at most %d", unrun, maxUnrunFixes)
	}
}

// listFixes returns the commands in the strings of all areas, each with its file.
func listFixes(t *testing.T) []string {
	t.Helper()

	var out []string

	areas := []string{"bridge", "hosts", "hypervisor", "identity", "kit", "networking", "platform", "runners", "workload"}
	walkStrings(t, areas, func(path, text string) {
		for _, command := range fixCommand.FindAllString(text, -1) {
			out = append(out, path+": "+command)
		}
	})

	slices.Sort(out)

	return slices.Compact(out)
}

// walkStrings calls visit for each string in the code of areas.
func walkStrings(t *testing.T, areas []string, visit func(path, text string)) {
	t.Helper()

	walk(t, func(path string) {
		path = filepath.ToSlash(path)

		area, _, _ := strings.Cut(path, "/")
		if !slices.Contains(areas, area) || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}

		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}

		ast.Inspect(file, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}

			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}

			visit(path, text)

			return true
		})
	})
}

// immutableRule is a rule of a CRD by which a field cannot be changed. Its name is in the rule or in the next JSON tag.
var (
	immutableRule  = regexp.MustCompile(`XValidation:rule="self == oldSelf"`)
	immutableField = regexp.MustCompile(`self\.(\w+) == oldSelf\.(\w+)`)
	jsonTag        = regexp.MustCompile("`json:\"(\\w+)")
)

// listImmutableFields returns the fields of an API group that cannot be changed.
func listImmutableFields(t *testing.T, group string) []string {
	t.Helper()

	files, err := filepath.Glob(filepath.Join("api", group, "v1alpha1", "*_types.go"))
	if err != nil {
		t.Fatal(err)
	}

	var out []string

	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		isImmutable := false

		for line := range strings.Lines(string(code)) {
			isImmutable = isImmutable || immutableRule.MatchString(line)

			for _, match := range immutableField.FindAllStringSubmatch(line, -1) {
				out = append(out, match[1])
			}

			if tag := jsonTag.FindStringSubmatch(line); tag != nil && isImmutable {
				out, isImmutable = append(out, tag[1]), false
			}
		}
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// TestFixesChangeNoImmutableField checks that no message advises to change a field that cannot be changed. The messages
// name some fields by what they refer to.
func TestFixesChangeNoImmutableField(t *testing.T) {
	t.Parallel()

	meanings := map[string]string{"dpuClusterRef": "DPUCluster", "etcdStorageClass": "StorageClass"}

	for area, group := range map[string]string{"bridge": "bridge", "hosts": "infrastructure", "networking": "infrastructure"} {
		fields := listImmutableFields(t, group)
		if len(fields) == 0 {
			t.Fatalf("found no field of %s that cannot be changed", group)
		}

		for i, field := range fields {
			if meaning := meanings[field]; meaning != "" {
				fields = append(fields, meaning)
			}

			fields[i] = `(?:spec\.)?` + field
		}

		advice := regexp.MustCompile(`(?:: |, |; |or )(?:set|correct|change|choose|name|omit|use) (?:a |an |another )?(?:` +
			strings.Join(fields, "|") + `)\b`)

		walkStrings(t, []string{area}, func(path, text string) {
			if match := advice.FindString(text); match != "" {
				t.Errorf("%s: %q says %q, but the field cannot be changed: say what to delete and to create again", path, text, match)
			}
		})
	}
}

// dottedName is a name such as that of a field, network.static.pool.
var dottedName = regexp.MustCompile(`[a-z][A-Za-z0-9]*(?:\.[a-z][A-Za-z0-9_]*)+`)

// listFields returns the paths of all fields of the CRDs and of the operator's configuration, and all parts of the paths.
func listFields(t *testing.T) map[string]bool {
	t.Helper()

	out := map[string]bool{}
	add := func(path []string) {
		for from := range path {
			for to := from + 1; to <= len(path); to++ {
				out[strings.Join(path[from:to], ".")] = true
			}
		}
	}

	page, err := os.ReadFile("docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, row := range regexp.MustCompile("(?m)^\\| `([a-zA-Z.]+)").FindAllSubmatch(page, -1) {
		add(strings.Split(string(row[1]), "."))
	}

	files, err := filepath.Glob("deploy/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("found no CRDs: %v", err)
	}

	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}

		for i := range crd.Spec.Versions {
			addFields(crd.Spec.Versions[i].Schema.OpenAPIV3Schema, nil, add)
		}
	}

	return out
}

// addFields calls add for each field below a schema.
func addFields(schema *apiextensionsv1.JSONSchemaProps, path []string, add func([]string)) {
	if schema == nil {
		return
	}

	for name := range schema.Properties {
		field, below := schema.Properties[name], append(slices.Clone(path), name)
		add(below)
		addFields(&field, below, add)
	}

	if schema.Items != nil {
		addFields(schema.Items.Schema, path, add)
	}

	if schema.AdditionalProperties != nil {
		addFields(schema.AdditionalProperties.Schema, path, add)
	}
}

// TestFixesNameFieldsThatExist checks that each field that a message tells a person to set, or names otherwise, exists. The
// platform's own files are other ones, whose readers reject unknown fields.
func TestFixesNameFieldsThatExist(t *testing.T) {
	t.Parallel()

	// foreign are fields and other names of other projects.
	foreign := []string{
		"serviceAllocation.namespaces", "serviceAllocation.serviceSelectors", "spec.configuration.permittedHostDevices",
		"spec.kubeconfig", "net.ipv4.ping_group_range",
	}
	advice := regexp.MustCompile(`(?:[:;,]|\bor|\band) (?:add|allow|change|check|choose|correct|enable|give|include|list|lower|name|omit|` +
		`put|raise|remove|rename|replace|set|unset|use|write)\b.*`)
	fields, found := listFields(t), 0

	areas := []string{"bridge", "hosts", "hypervisor", "identity", "kit", "networking", "runners", "workload"}
	walkStrings(t, areas, func(path, text string) {
		text = advice.FindString(text)

		for _, at := range dottedName.FindAllStringIndex(text, -1) {
			name := text[at[0]:at[1]]

			isPart := at[0] > 0 && strings.ContainsRune("./%@-_:", rune(text[at[0]-1])) ||
				at[1] < len(text) && strings.ContainsRune("/-%", rune(text[at[1]]))
			if isPart || slices.Contains(foreign, name) || strings.Contains(name, "example") || strings.HasPrefix(name, "hyperfleet.") {
				continue
			}

			found++

			if !fields[name] {
				t.Errorf("%s: %q names %s, and neither a CRD nor the operator's configuration has this field", path, text, name)
			}
		}
	})

	if found < 80 {
		t.Errorf("found %d fields in messages, want at least 80: check the expressions", found)
	}
}

// hasTest returns whether a test of a folder exists.
func hasTest(t *testing.T, folder, test string) bool {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}

	return slices.ContainsFunc(files, func(file string) bool {
		code, err := os.ReadFile(file)

		return err == nil && strings.Contains(string(code), "\nfunc "+test+"(")
	})
}
