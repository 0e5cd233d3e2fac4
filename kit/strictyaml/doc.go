// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strictyaml reads YAML files into structs with yaml tags and says everything
// that is wrong with them at once, each with file, line and column: unknown and double
// keys, values of a wrong type, more than one document.
//
//	doc, err := strictyaml.Parse("task.yaml", data)
//	err = doc.Decode(&task)                       // Problems, or nil
//	problem := doc.At(strictyaml.Path{"resources", 0, "name"}, "name it")
//
// Durations are texts such as 10s. A value that is not set, or null, leaves what is in
// the struct: fill defaults in before. Anchors, aliases and merge keys work, with a bound
// on what they expand to.
//
// [Spec] reads a program's configuration: file, then HYPERFLEET_* variables, then flags.
// Secrets are no part of a configuration: a key names a file, which is read when the
// secret is needed.
package strictyaml
