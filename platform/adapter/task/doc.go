// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package task reads the two files of an adapter (api/adapter) and compiles the task file. Load
// checks all paths, templates and expressions, and returns all problems at once, each with its
// file, line and column.
//
//	loaded, err := task.LoadFile("task.yaml", deployment)    // err: strictyaml.Problems
//	object, err := loaded.Resources[0].Manifest.RenderObject(ctx, vars)
//
// # Variables
//
// CEL expressions and templates read the same variables from one map of JSON values
// (map[string]any, []any, string, int64, float64, bool, nil):
//
//	event      data of the event
//	config     the deployment configuration, without secrets
//	env        the environment variables that the deployment configuration lists
//	adapter    name, version and current result of the event (AdapterFields)
//	NAME       each param, in the order of the file; nil if the param is optional and has no value
//	NAME       the response of each precondition with an api_call, and each captured value
//	resources  the discovered objects by the name of their entry, without absent objects.
//	           Params and preconditions can't read it
//	NAME       each payload as JSON text, only in templates of post actions
//
// # Templates
//
// Templates are Go's text/template. An unknown variable and a variable without a value are
// errors. In addition to Go's functions, templates can call: now, date, dateFormat, lower, upper,
// title, trim, trimPrefix, trimSuffix, replace, contains, hasPrefix, hasSuffix, quote, default,
// int, int64, float, float64, string. The text is the first argument or the piped value:
//
//	{{ replace .now ":" "-" }}     {{ .now | replace ":" "-" }}
//
// The result of a template is data: in a manifest that is YAML, a rendered string stays a string,
// whatever it contains. A manifest that is a block string, a JSON body and a URL are parsed with slots
// in place of the values, so that a value can't add keys, items, segments or parameters. A value that
// would have to is an error that names its template.
package task
