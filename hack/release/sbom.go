// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeSBOM writes an SBOM with the modules in the build information of the programs.
func (r *release) writeSBOM() error {
	product := cdx.Component{
		BOMRef: "hyperfleet", Type: cdx.ComponentTypeApplication, Name: "hyperfleet", Version: r.version,
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	modules := map[string]cdx.Component{}
	root := cdx.Dependency{Ref: product.BOMRef, Dependencies: &[]string{}}

	var (
		programs     []cdx.Component
		dependencies []cdx.Dependency
	)

	for _, m := range r.programs() {
		program, dependency, err := r.componentOf(m.file(), modules)
		if err != nil {
			return err
		}

		programs = append(programs, program)
		dependencies = append(dependencies, dependency)
		*root.Dependencies = append(*root.Dependencies, program.BOMRef)
	}

	libraries := make([]cdx.Component, 0, len(modules))
	for _, module := range modules {
		libraries = append(libraries, module)
	}

	slices.SortFunc(libraries, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })

	components := slices.Concat(programs, libraries)
	all := append([]cdx.Dependency{root}, dependencies...)
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: r.time.UTC().Format("2006-01-02T15:04:05Z"), Component: &product}
	bom.Components, bom.Dependencies = &components, &all

	file, err := os.Create(r.file("hyperfleet-" + r.version + ".cdx.json"))
	if err != nil {
		return err
	}

	if err := cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6); err != nil {
		_ = file.Close()

		return fmt.Errorf("write SBOM: %w", err)
	}

	return file.Close()
}

// componentOf returns the component and the dependencies of a program, and adds the program's modules to
// modules.
func (r *release) componentOf(file string, modules map[string]cdx.Component) (cdx.Component, cdx.Dependency, error) {
	info, err := buildinfo.ReadFile(r.file(file))
	if err != nil {
		return cdx.Component{}, cdx.Dependency{}, fmt.Errorf("read %s: %w", file, err)
	}

	sum, err := sha256Of(r.file(file))
	if err != nil {
		return cdx.Component{}, cdx.Dependency{}, err
	}

	library := library(&debug.Module{Path: "std", Version: strings.Replace(info.GoVersion, "go", "v", 1)})
	modules[library.BOMRef] = library
	dependency := cdx.Dependency{Ref: file, Dependencies: &[]string{library.BOMRef}}

	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}

		library := libraryWithHash(module)
		modules[library.BOMRef] = library
		*dependency.Dependencies = append(*dependency.Dependencies, library.BOMRef)
	}

	return cdx.Component{
		BOMRef: file, Type: cdx.ComponentTypeApplication, Name: file, Version: r.version,
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}},
	}, dependency, nil
}

// libraryWithHash returns the component of a module with its hash in go.sum.
func libraryWithHash(module *debug.Module) cdx.Component {
	out := library(module)

	if sum, ok := strings.CutPrefix(module.Sum, "h1:"); ok {
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil {
			out.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(raw)}}
		}
	}

	return out
}

func library(module *debug.Module) cdx.Component {
	purl := "pkg:golang/" + module.Path + "@" + module.Version

	return cdx.Component{BOMRef: purl, Type: cdx.ComponentTypeLibrary, Name: module.Path, Version: module.Version, PackageURL: purl}
}
