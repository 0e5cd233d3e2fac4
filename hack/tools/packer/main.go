// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command packer-validate checks a folder with a template of Packer in the same way as `packer validate` does. It uses
// Packer's own code (1.9.4, the last version with a free licence) for the language, the functions, the variables and the
// provisioners. The plugin for Proxmox VE is not available as a Go module, so package main lists the fields of its
// builders. Tests use this program. It is not part of a release.
//
//	packer-validate FOLDER [NAME=VALUE ...]
//
// If the template is valid, the program prints the files that Packer generates for ISOs, as a JSON object of their contents
// by name.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/hashicorp/go-version"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	packersdk "github.com/hashicorp/packer-plugin-sdk/packer"
	"github.com/hashicorp/packer/hcl2template"
	"github.com/hashicorp/packer/packer"
	"github.com/hashicorp/packer/provisioner/file"
	"github.com/hashicorp/packer/provisioner/powershell"
	"github.com/hashicorp/packer/provisioner/shell"
)

const packerVersion = "1.9.4"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: packer-validate FOLDER [NAME=VALUE ...]")
		os.Exit(2)
	}

	log.SetOutput(io.Discard) // Packer's own log

	variables := map[string]string{}

	for _, arg := range os.Args[2:] {
		name, value, _ := strings.Cut(arg, "=")
		variables[name] = value
	}

	files, err := validate(os.Args[1], variables)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(files)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "packer-validate:", err)
		os.Exit(1)
	}
}

// validate returns the generated files of a template. Warnings are errors.
func validate(folder string, variables map[string]string) (map[string]string, error) {
	files := map[string]string{}
	parser := &hcl2template.Parser{
		CorePackerVersion: version.Must(version.NewSemver(packerVersion)), CorePackerVersionString: packerVersion,
		Parser: hclparse.NewParser(), PluginConfig: newPlugins(files),
		ValidationOptions: hcl2template.ValidationOptions{WarnOnUndeclaredVar: true},
	}

	config, diags := parser.Parse(folder, nil, variables)
	if len(diags) > 0 {
		return nil, describe(parser, diags)
	}

	if diags = config.Initialize(packer.InitializeOptions{}); len(diags) > 0 {
		return nil, describe(parser, diags)
	}

	builds, diags := config.GetBuilds(packer.GetBuildsOptions{})
	if len(diags) > 0 {
		return nil, describe(parser, diags)
	}

	if len(builds) == 0 {
		return nil, fmt.Errorf("read %s: it has no build", folder)
	}

	return files, nil
}

// describe returns an error with the places of all diagnostics.
func describe(parser *hcl2template.Parser, diags hcl.Diagnostics) error {
	var text strings.Builder

	writer := hcl.NewDiagnosticTextWriter(&text, parser.Files(), 0, false)
	if err := writer.WriteDiagnostics(diags); err != nil {
		return diags
	}

	return fmt.Errorf("%s", strings.TrimSpace(text.String()))
}

// newPlugins returns the builders of the plugin for Proxmox VE, and the provisioners that are part of Packer.
func newPlugins(files map[string]string) *packer.PluginConfig {
	return &packer.PluginConfig{
		Builders: packer.MapOfBuilder{
			"proxmox-clone": func() (packersdk.Builder, error) { return newCloneBuilder(files), nil },
			"proxmox-iso":   func() (packersdk.Builder, error) { return newISOBuilder(files), nil },
		},
		Provisioners: packer.MapOfProvisioner{
			"file":       func() (packersdk.Provisioner, error) { return &file.Provisioner{}, nil },
			"powershell": func() (packersdk.Provisioner, error) { return &powershell.Provisioner{}, nil },
			"shell":      func() (packersdk.Provisioner, error) { return &shell.Provisioner{}, nil },
		},
		PostProcessors: packer.MapOfPostProcessor{},
		DataSources:    packer.MapOfDatasource{},
	}
}
