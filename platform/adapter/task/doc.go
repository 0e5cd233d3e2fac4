// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package task reads an adapter's two files (api/adapter) and compiles the task file:
// paths, templates and expressions are checked when it is loaded, and all that is wrong is
// said at once, each with file, line and column.
//
//	loaded, err := task.LoadFile("task.yaml", deployment)    // err: strictyaml.Problems
//	object, err := loaded.Resources[0].Manifest.RenderObject(ctx, vars)
//
// # Variables
//
// CEL and templates see the same variables, in one map of JSON values (map[string]any,
// []any, string, int64, float64, bool, nil):
//
//	event      data of the event
//	config     the deployment configuration, without secrets
//	env        the environment variables that the deployment configuration lists
//	adapter    name, version, and how the event went so far (AdapterFields)
//	NAME       each param, in the order of the file; one that is optional and has no value
//	           is there as nil
//	NAME       each precondition with an api_call: its answer; and what it captures
//	resources  what was found, by the name of the entry; one that is absent is not in it.
//	           Not yet seen by params and preconditions
//	NAME       in templates of post actions alone: each payload, as JSON text
//
// # Templates
//
// Go's text/template. A variable that is not known, and one without a value, is an error.
// Beside Go's own functions: now, date, dateFormat, lower, upper, title, trim, trimPrefix,
// trimSuffix, replace, contains, hasPrefix, hasSuffix, quote, default, int, int64, float,
// float64, string. The text may be the first argument, or be piped in:
//
//	{{ replace .now ":" "-" }}     {{ .now | replace ":" "-" }}
//
// What a template renders is data: in a manifest that is YAML, a text stays a text,
// whatever is in it. A manifest that is a block string is YAML after it was rendered; there
// it is the author's part to quote.
package task
