// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// packerFolder has the templates of Packer.
const packerFolder = "../../../deploy/proxmox"

// packerPages are the pages whose commands build the templates.
var packerPages = map[string]string{
	"linux": "../../../docs/guides/proxmox-template.md", "windows": "../../../docs/guides/windows.md",
}

// readPackerVariables returns the variables of the command in the page of a template, and a folder of programs for it.
func readPackerVariables(t *testing.T, template string) []string {
	t.Helper()

	page, err := os.ReadFile(packerPages[template])
	if err != nil {
		t.Fatal(err)
	}

	_, text, found := strings.Cut(string(page), "packer build ")
	text, _, _ = strings.Cut(text, " deploy/proxmox/packer/"+template+"\n")

	if !found || strings.Contains(text, "```") {
		t.Fatalf("%s does not build the template %s", packerPages[template], template)
	}

	var out []string

	for word := range strings.FieldsSeq(text) {
		if strings.Contains(word, "=") {
			out = append(out, word)
		}
	}

	setup := t.TempDir()
	for _, name := range []string{"bootstrap-service", "bootstrap-service.exe"} {
		if err := os.WriteFile(filepath.Join(setup, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	return append(out, "setup="+setup)
}

// Packer's own code accepts the templates, with the fields of the plugin for Proxmox VE.
func TestPackerTemplates(t *testing.T) {
	t.Parallel()

	program := findProgram(t, "packer-validate")

	for name := range packerPages {
		args := append([]string{filepath.Join(packerFolder, "packer", name)}, readPackerVariables(t, name)...)
		output := run(t, ".", os.Environ(), "", 0, program, args...)

		if name == "windows" {
			checkAnswers(t, output)
		}
	}
}

// checkAnswers checks the answer file that Packer writes for the installation of Windows.
func checkAnswers(t *testing.T, output string) {
	t.Helper()

	files := map[string]string{}
	if err := json.Unmarshal([]byte(output), &files); err != nil {
		t.Fatalf("read %q: %v", output, err)
	}

	text := files["autounattend.xml"]
	checkComponents(t, text, "windowsPE Microsoft-Windows-International-Core-WinPE",
		"windowsPE Microsoft-Windows-PnpCustomizationsWinPE", "windowsPE Microsoft-Windows-Setup",
		"oobeSystem Microsoft-Windows-International-Core", "oobeSystem Microsoft-Windows-Shell-Setup")

	for _, want := range []string{
		`<Path>E:\vioscsi\2k22\amd64</Path>`, `<Path>G:\NetKVM\2k22\amd64</Path>`, "<Value>Windows Server 2022 SERVERSTANDARD</Value>",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the answer file does not contain %q:\n%s", want, text)
		}
	}

	if strings.Contains(text, "${") || strings.Contains(text, "%{") {
		t.Errorf("Packer did not replace all names:\n%s", text)
	}
}

// checkComponents checks that an answer file of Windows is XML and has these components, each after the name of its pass. Of a
// component or a pass that Windows does not know, Setup reports an error or ignores it.
func checkComponents(t *testing.T, text string, want ...string) {
	t.Helper()

	var (
		got  []string
		pass string
	)

	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			t.Fatalf("the answer file is not XML: %v\n%s", err, text)
		}

		element, ok := token.(xml.StartElement)
		if !ok || element.Name.Local != "settings" && element.Name.Local != "component" {
			continue
		}

		for _, attribute := range element.Attr {
			switch attribute.Name.Local {
			case "pass":
				pass = attribute.Value
			case "name":
				got = append(got, pass+" "+attribute.Value)
			}
		}
	}

	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
}

// The answer file for the first boot of machines disables the account of the template's build, and has no credential.
func TestSysprepAnswers(t *testing.T) {
	t.Parallel()

	raw, err := os.ReadFile(filepath.Join(packerFolder, "sysprep.xml"))
	if err != nil {
		t.Fatal(err)
	}

	text := string(raw)
	checkComponents(t, text, "generalize Microsoft-Windows-PnpSysprep", "specialize Microsoft-Windows-Deployment",
		"oobeSystem Microsoft-Windows-International-Core", "oobeSystem Microsoft-Windows-Shell-Setup")

	if !strings.Contains(text, "net.exe user Administrator /active:no") || strings.Contains(text, "Password") {
		t.Errorf("the machines keep an account, or get a password:\n%s", text)
	}
}

// A mistake in a template is found, with its place.
func TestPackerRejects(t *testing.T) {
	t.Parallel()

	program := findProgram(t, "packer-validate")

	for name, tc := range map[string]struct{ template, old, replacement, says string }{
		"field of the builder": {"linux", "full_clone ", "fully_clone ", "An argument named \"fully_clone\" is not expected here"},
		"field of a block":     {"windows", "pre_enrolled_keys", "enrolled_keys", "\"enrolled_keys\" is not expected here"},
		"block":                {"windows", "boot_iso {", "boot_isos {", "boot_isos"},
		"type":                 {"windows", "discard      = true", `discard = "often"`, "a bool is required"},
		"required field":       {"windows", "  node          = var.node\n", "", "\"node\" is required"},
		"field of a provisioner": {
			"linux", "skip_clean = true", "skip_cleaning = true", "An argument named \"skip_cleaning\" is not expected here",
		},
		"kind of provisioner": {"windows", `provisioner "powershell"`, `provisioner "power-shell"`, "power-shell"},
		"unknown variable":    {"linux", "var.bridge", "var.brigde", "does not have an attribute named \"brigde\""},
		"unknown function":    {"linux", "split(", "splitted(", "no function named \"splitted\""},
		"duration":            {"windows", `boot_wait    = "2s"`, `boot_wait = "2x"`, "2x"},
		"name of the answer file": {
			"windows", "autounattend.pkrtpl.hcl", "unattend.pkrtpl.hcl", "unattend.pkrtpl.hcl",
		},
		"script that does not exist": {"linux", "root}/../../customize.sh", "root}/../customize.sh", "customize.sh"},
		"file that does not exist":   {"windows", "root}/../../sysprep.xml", "root}/sysprep.xml", "sysprep.xml"},
		"user of WinRM":              {"windows", "  winrm_username = \"Administrator\"\n", "", "winrm_username must be specified"},
		"two sources of an ISO": {
			"windows", "iso_file = var.virtio_iso", "iso_file = var.virtio_iso\n    cd_content = { a = \"b\" }", "either iso_file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			variables := readPackerVariables(t, tc.template)
			root := t.TempDir()

			if err := os.CopyFS(root, os.DirFS(packerFolder)); err != nil {
				t.Fatal(err)
			}

			folder := filepath.Join(root, "packer", tc.template)
			file := filepath.Join(folder, tc.template+".pkr.hcl")

			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}

			if !strings.Contains(string(text), tc.old) {
				t.Fatalf("the template does not contain %q", tc.old)
			}

			if err := os.WriteFile(file, []byte(strings.Replace(string(text), tc.old, tc.replacement, 1)), 0o600); err != nil {
				t.Fatal(err)
			}

			output := run(t, ".", os.Environ(), "", 1, program, append([]string{folder}, variables...)...)
			if !strings.Contains(strings.Join(strings.Fields(output), " "), tc.says) {
				t.Errorf("the output is %q, want %q in it", output, tc.says)
			}
		})
	}
}
