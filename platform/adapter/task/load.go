// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// conditionApplied is a condition of Open Cluster Management.
const conditionApplied = "Applied"

// maxFile bounds a task file and each file that it refers to.
const maxFile = 1 << 20

// Option changes how a task file is loaded.
type Option func(*loader)

// WithClock is the clock of expressions and templates. Default: the real one.
func WithClock(clk clock.PassiveClock) Option { return func(l *loader) { l.clock = clk } }

// LoadFile is Load for a file on disk. Files that it refers to are beside it or below; a
// symbolic link does not lead out of there.
func LoadFile(name string, deployment *adapter.Deployment, options ...Option) (*Task, error) {
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, strictyaml.Problems{{File: name, Message: "open folder: " + withoutPath(err)}}
	}
	defer root.Close() //nolint:errcheck // it was only read

	inFolder := func(l *loader) { l.folder = filepath.Dir(name) }

	return Load(root.FS(), filepath.Base(name), deployment, append([]Option{inFolder}, options...)...)
}

// Load reads and checks a task file. With a deployment (it may be nil) what the file uses
// of it is checked, too: environment variables, config paths, transports. The error is of
// type strictyaml.Problems and has everything that is wrong. It and the files that it refers
// to are in dir; where that follows symbolic links, so does Load: use LoadFile for files on
// disk.
func Load(dir fs.FS, name string, deployment *adapter.Deployment, options ...Option) (*Task, error) {
	l := &loader{
		dir: dir, deployment: deployment, clock: clock.RealClock{}, task: &Task{},
		known: map[string]bool{}, later: map[string]string{}, fixed: map[string]bool{},
	}
	for _, option := range options {
		option(l)
	}

	if l.text == nil {
		var err error
		if l.text, err = l.read(name); err != nil {
			return nil, strictyaml.Problems{{File: filepath.Join(l.folder, name), Message: err.Error()}}
		}
	}

	doc, err := strictyaml.Parse(filepath.Join(l.folder, name), l.text)
	if err != nil {
		return nil, err
	}

	l.doc = doc
	l.problems = append(l.problems, problemsOf(doc.Decode(&l.task.Spec))...)
	l.phases()

	if err := l.problems.Err(); err != nil {
		return nil, err
	}

	l.task.Warnings = l.task.Warnings.Sorted()

	return l.task, nil
}

// loader checks and compiles one file.
type loader struct {
	dir fs.FS
	// text is the file's, if it need not be read.
	text       []byte
	folder     string
	deployment *adapter.Deployment
	clock      clock.PassiveClock
	doc        *strictyaml.Document
	task       *Task
	problems   strictyaml.Problems
	// env, capture and retention are where expressions of the file, of captures and of
	// retentions are compiled: they know all names of the file.
	env, capture, retention *cel.Env
	// known are the names that have a value by now; later are all of the file, with what
	// they are.
	known map[string]bool
	later map[string]string
	// fixed are the params that are the same in all events of a resource.
	fixed map[string]bool
	// resources are the names of what is discovered.
	resources []string
	// used are the variables of the templates that were compiled.
	used []string
}

func (l *loader) problem(at strictyaml.Path, format string, args ...any) *strictyaml.Problem {
	l.problems = append(l.problems, l.doc.At(at, format, args...))

	return &l.problems[len(l.problems)-1]
}

func (l *loader) warnf(at strictyaml.Path, hint, format string, args ...any) {
	l.task.Warnings = append(l.task.Warnings, l.doc.At(at, format, args...).WithHint("%s", hint))
}

// read reads a file of the folder.
func (l *loader) read(name string) ([]byte, error) {
	clean := path.Clean(filepath.ToSlash(name))
	if !fs.ValidPath(clean) {
		return nil, fmt.Errorf("%s is not in the folder of the task file, or below", name)
	}

	info, err := fs.Stat(l.dir, clean)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", name, withoutPath(err))
	}

	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s is not a file, or larger than %d bytes", name, maxFile)
	}

	data, err := fs.ReadFile(l.dir, clean)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", name, withoutPath(err))
	}

	return data, nil
}

// withoutPath is a file's error without its path, which is said elsewhere.
func withoutPath(err error) string {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err.Error()
	}

	return err.Error()
}

// within places problems in another file for as long as compile takes.
func (l *loader) within(doc *strictyaml.Document, compile func()) {
	main := l.doc
	l.doc = doc

	compile()

	l.doc = main
}

// object reads a YAML object.
func object(label string, data []byte) (*strictyaml.Document, map[string]any, error) {
	out := map[string]any{}

	doc, err := strictyaml.Parse(label, data)
	if err == nil {
		err = doc.Decode(&out)
	}

	return doc, out, err
}

func problemsOf(err error) strictyaml.Problems {
	var problems strictyaml.Problems

	errors.As(err, &problems)

	return problems
}

// phases goes through the file in the order in which it is executed.
func (l *loader) phases() {
	for _, name := range builtins() {
		l.known[name] = true
	}

	l.collect()

	if err := l.environments(); err != nil {
		l.problem(nil, "%v", err)

		return
	}

	for i := range l.task.Spec.Params {
		l.param(i)
	}

	for i := range l.task.Spec.Preconditions {
		l.precondition(i)
	}

	l.known[varResources] = true

	for i := range l.task.Spec.Resources {
		l.resource(i)
	}

	for i := range l.task.Spec.Post.Payloads {
		l.payload(i)
	}

	for i := range l.task.Spec.Post.PostActions {
		l.action(i)
	}
}

// environments makes those of CEL, with all names of the file.
func (l *loader) environments() error {
	var variables []cel.Variable
	for _, name := range append(builtins(), varResources) {
		variables = append(variables, cel.Variable{Name: name, Fields: l.fieldsOf(name)})
	}

	for _, name := range slices.Sorted(maps.Keys(l.later)) {
		if l.later[name] != whatPayload {
			variables = append(variables, cel.Variable{Name: name})
		}
	}

	var err error
	if l.env, err = cel.New(cel.Options{Variables: variables, Clock: l.clock}); err != nil {
		return err
	}

	if l.capture, err = l.env.Extend(cel.Variable{Name: varResponse}); err != nil {
		return err
	}

	l.retention, err = l.env.Extend(cel.Dyn(varItem, varItems, varItemIndex)...)

	return err
}

// expression compiles one; nil, with a problem, where that fails.
func (l *loader) expression(env *cel.Env, at strictyaml.Path, text string, gate bool) *cel.Program {
	compile := env.Compile
	if gate {
		compile = env.CompileBool
	}

	program, err := compile(text)

	var failed *cel.CompileError
	if errors.As(err, &failed) {
		for _, issue := range failed.Issues {
			problem, ok := l.doc.Inside(at, issue.Line, issue.Column, "%s", issue.Message)
			if !ok {
				problem.Message += fmt.Sprintf(", at %d:%d of the expression", issue.Line, issue.Column)
			}

			hint := issue.Hint
			if name, ok := strings.CutPrefix(issue.Message, "unknown variable or function "); ok && env == l.capture && hint == "" {
				hint = "a field of the answer is response." + name
			}

			l.problems = append(l.problems, problem.WithHint("%s", hint))
		}

		return nil
	}

	for _, name := range program.Variables() {
		if what := l.later[name]; what != "" && !l.known[name] || name == varResources && !l.known[varResources] {
			l.notYet(at, name)
		}
	}

	l.neverGiven(at, text)

	return program
}

// neverGiven warns of what Open Cluster Management's work agent does not say: of a manifest
// in a work, the condition Applied alone has the generation that it is about.
func (l *loader) neverGiven(at strictyaml.Path, text string) {
	if !strings.Contains(text, "observedGeneration") || strings.Contains(text, conditionApplied) {
		return
	}

	about := strings.Contains(text, "resourceStatus")

	for i := range l.task.Spec.Resources {
		for _, nested := range l.task.Spec.Resources[i].NestedDiscoveries {
			about = about || regexp.MustCompile(`resources\.\??`+regexp.QuoteMeta(nested.Name)+`\b`).MatchString(text)
		}
	}

	if about {
		l.warnf(at, "compare that of the work's own conditions, status.conditions",
			"conditions of a manifest in a ManifestWork have no observedGeneration, but for Applied")
	}
}

// notYet is the problem of a name that has no value there.
func (l *loader) notYet(at strictyaml.Path, name string) {
	if name == varResources {
		l.problem(at, "%s is not known there: the resources phase comes later", name)

		return
	}

	l.problem(at, "%s is not known there: it is %s that comes later", name, l.later[name])
}

// template compiles one; nil, with a problem, where that fails.
func (l *loader) template(at strictyaml.Path, text string) *Template {
	out, err := newTemplate(text, l.clock)
	if err != nil {
		l.problem(at, "bad template: %v", err)

		return nil
	}

	l.used = append(l.used, out.Variables()...)

	for _, one := range out.uses {
		if message, hint := l.checkUse(one); message != "" {
			l.problem(at, "%s", message).Hint = hint
		}
	}

	return out
}

// optionalTemplate is nil for the empty text.
func (l *loader) optionalTemplate(at strictyaml.Path, text string) *Template {
	if text == "" {
		return nil
	}

	return l.template(at, text)
}

// checkUse says what is wrong with a variable of a template.
func (l *loader) checkUse(one use) (message, hint string) {
	if one.variable == nowVariable {
		return "", ""
	}

	if !l.known[one.variable] {
		if what := l.later[one.variable]; what != "" {
			return fmt.Sprintf("variable %s is not known there: it is %s that comes later", one.variable, what), ""
		}

		names := slices.Collect(maps.Keys(l.known))

		return "unknown variable " + one.variable, strictyaml.Nearest(one.variable, append(names, nowVariable))
	}

	fields := l.fieldsOf(one.variable)
	if one.field == "" || fields == nil || slices.Contains(fields, one.field) {
		return "", ""
	}

	return fmt.Sprintf("unknown %s.%s", one.variable, one.field), strictyaml.Nearest(one.field, fields)
}

// fieldsOf are the fields that a variable has; nil where they are not known.
func (l *loader) fieldsOf(variable string) []string {
	switch variable {
	case varResources:
		return append([]string{}, l.resources...)
	case varAdapter:
		return AdapterFields()
	case varEnv:
		if l.deployment != nil {
			return append([]string{}, l.deployment.Environment...)
		}
	case varConfig:
		if l.deployment != nil {
			return configFields()
		}
	}

	return nil
}
