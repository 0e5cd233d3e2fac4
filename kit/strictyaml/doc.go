// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package strictyaml decodes YAML files into structs with yaml tags. It reports all problems of a
// file at once, each with file, line and column: unknown and duplicate keys, values of a wrong
// type, and more than one document.
//
//	doc, err := strictyaml.Parse("task.yaml", data)
//	err = doc.Decode(&task)                       // Problems, or nil
//	problem := doc.ProblemAt(strictyaml.Path{"resources", 0, "name"}, "name it")
//
// [ParseTree] and [Encode] do the same for texts that are changed and not decoded, such as cloud-init data.
//
// Durations are strings such as 10s. If a value is not set, or is null, the struct keeps its value,
// so set defaults before decoding. Anchors, aliases and merge keys are supported, with a limit on
// their expansion.
//
// [Spec] loads a program's configuration from a file, HYPERFLEET_* variables and flags. A later
// source overrides an earlier one. A configuration contains no secrets. Instead, a key names a
// file, which the program reads when it needs the secret.
package strictyaml
