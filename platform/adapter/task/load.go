// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
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

// conditionApplied is a condition type of Open Cluster Management.
const conditionApplied = "Applied"

// maxFileSize limits a task file and each file that it refers to, in bytes.
const maxFileSize = 1 << 20

// Option configures how a task file is loaded.
type Option func(*loader)

// WithClock sets the clock of expressions and templates. Default: the real clock.
func WithClock(clk clock.PassiveClock) Option { return func(l *loader) { l.clock = clk } }

// WithText sets the content of the task file. Default: Load reads the file.
func WithText(text []byte) Option { return func(l *loader) { l.text = text } }

// LoadFile loads a task file from disk as Load does. The files that it refers to have to be in its
// folder or below. LoadFile does not follow symbolic links that lead out of the folder.
func LoadFile(name string, deployment *adapter.Deployment, options ...Option) (*Task, error) {
	root, err := os.OpenRoot(filepath.Dir(name))
	if err != nil {
		return nil, strictyaml.Problems{{File: name, Message: "open folder: " + stripPath(err)}}
	}
	defer root.Close() //nolint:errcheck // the folder was only read

	inFolder := func(l *loader) { l.folder = filepath.Dir(name) }

	return Load(root.FS(), filepath.Base(name), deployment, append([]Option{inFolder}, options...)...)
}

// Load reads, validates and compiles a task file in dir. If deployment is not nil, Load also
// checks the environment variables, config paths and transports that the file uses. The error is
// of type strictyaml.Problems and lists all problems. The files that the task file refers to have
// to be in dir. Load follows symbolic links if dir does, so use LoadFile for files on disk.
func Load(dir fs.FS, name string, deployment *adapter.Deployment, options ...Option) (*Task, error) {
	l := &loader{
		dir: dir, deployment: deployment, clock: clock.RealClock{}, task: &Task{},
		available: map[string]bool{}, declared: map[string]string{}, constantParams: map[string]bool{},
	}
	for _, option := range options {
		option(l)
	}

	l.digest = sha256.New()

	if l.text == nil {
		var err error
		if l.text, err = l.readFile(name); err != nil {
			return nil, strictyaml.Problems{{File: filepath.Join(l.folder, name), Message: err.Error()}}
		}
	}

	doc, err := strictyaml.Parse(filepath.Join(l.folder, name), l.text)
	if err != nil {
		return nil, err
	}

	l.doc = doc
	l.problems = append(l.problems, toProblems(doc.Decode(&l.task.Spec))...)
	l.compilePhases()

	if err := l.problems.Err(); err != nil {
		return nil, err
	}

	l.task.Warnings = l.task.Warnings.Sorted()
	l.task.Digest = hex.EncodeToString(l.digest.Sum(nil))

	return l.task, nil
}

// loader validates and compiles one task file.
type loader struct {
	dir fs.FS
	// text is the content of the task file. If it is nil, Load reads the file.
	text       []byte
	folder     string
	deployment *adapter.Deployment
	clock      clock.PassiveClock
	doc        *strictyaml.Document
	// digest is that of the files that were read.
	digest   hash.Hash
	task     *Task
	problems strictyaml.Problems
	// env compiles most expressions, captureEnv those of captures and retentionEnv those of
	// retentions. All three declare all names of the file.
	env, captureEnv, retentionEnv *cel.Env
	// available are the names that have a value at the current position in the file. declared are
	// all names of the file, with a phrase that describes them.
	available map[string]bool
	declared  map[string]string
	// constantParams are the params that have the same value in all events of a resource.
	constantParams map[string]bool
	// objectNames are the names of all resources and nested discoveries.
	objectNames []string
	// usedVariables are the variables of the templates that were compiled since the last reset.
	usedVariables []string
}

func (l *loader) addProblem(keyPath strictyaml.Path, format string, args ...any) *strictyaml.Problem {
	l.problems = append(l.problems, l.doc.ProblemAt(keyPath, format, args...))

	return &l.problems[len(l.problems)-1]
}

func (l *loader) warnf(keyPath strictyaml.Path, hint, format string, args ...any) {
	l.task.Warnings = append(l.task.Warnings, l.doc.ProblemAt(keyPath, format, args...).WithHint("%s", hint))
}

// readFile reads a file in the folder of the task file or below.
func (l *loader) readFile(name string) ([]byte, error) {
	clean := path.Clean(filepath.ToSlash(name))
	if !fs.ValidPath(clean) {
		return nil, fmt.Errorf("%s is outside the folder of the task file", name)
	}

	info, err := fs.Stat(l.dir, clean)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", name, stripPath(err))
	}

	if !info.Mode().IsRegular() || info.Size() > maxFileSize {
		return nil, fmt.Errorf("%s is not a regular file, or is larger than %d bytes", name, maxFileSize)
	}

	data, err := fs.ReadFile(l.dir, clean)
	if err != nil {
		return nil, fmt.Errorf("read %s: %s", name, stripPath(err))
	}

	l.digest.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
	l.digest.Write(data)

	return data, nil
}

// stripPath returns the text of a file error without the path, because the caller's message names
// the file.
func stripPath(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}

	return err.Error()
}

// withDocument calls compile, and adds its problems to doc instead of the task file.
func (l *loader) withDocument(doc *strictyaml.Document, compile func()) {
	main := l.doc
	l.doc = doc

	compile()

	l.doc = main
}

// parseObject parses a YAML document that has to be a mapping.
func parseObject(label string, data []byte) (*strictyaml.Document, map[string]any, error) {
	out := map[string]any{}

	doc, err := strictyaml.Parse(label, data)
	if err == nil {
		err = doc.Decode(&out)
	}

	return doc, out, err
}

func toProblems(err error) strictyaml.Problems {
	var problems strictyaml.Problems

	errors.As(err, &problems)

	return problems
}

// compilePhases compiles the file in the order in which the pipeline executes it.
func (l *loader) compilePhases() {
	for _, name := range builtins() {
		l.available[name] = true
	}

	l.declareNames()

	if err := l.createEnvironments(); err != nil {
		l.addProblem(nil, "%v", err)

		return
	}

	if spec := &l.task.Spec; len(l.problems)+len(spec.Params)+len(spec.Preconditions)+len(spec.Resources)+
		len(spec.Post.Payloads)+len(spec.Post.PostActions) == 0 {
		l.addProblem(nil, "the task file is empty").Hint = "add params, resources and post"
	}

	for i := range l.task.Spec.Params {
		l.compileParam(i)
	}

	for i := range l.task.Spec.Preconditions {
		l.compilePrecondition(i)
	}

	l.available[varResources] = true

	for i := range l.task.Spec.Resources {
		l.compileResource(i)
	}

	l.task.ReportsFinalized = mentionsFinalized(l.task.Spec.Post)

	for i := range l.task.Spec.Post.Payloads {
		l.compilePayload(i)
	}

	for i := range l.task.Spec.Post.PostActions {
		l.compileAction(i)
	}
}

// createEnvironments creates the CEL environments with all names of the file.
func (l *loader) createEnvironments() error {
	var variables []cel.Variable
	for _, name := range append(builtins(), varResources) {
		variables = append(variables, cel.Variable{Name: name, Fields: l.listFields(name)})
	}

	for _, name := range slices.Sorted(maps.Keys(l.declared)) {
		if l.declared[name] != phrasePayload {
			variables = append(variables, cel.Variable{Name: name})
		}
	}

	var err error
	if l.env, err = cel.New(cel.Options{Variables: variables, Clock: l.clock}); err != nil {
		return err
	}

	if l.captureEnv, err = l.env.Extend(cel.Variable{Name: varResponse}); err != nil {
		return err
	}

	l.retentionEnv, err = l.env.Extend(cel.NewDynVariables(varItem, varItems, varItemIndex)...)

	return err
}

// asCondition and asValue are the values of the parameter isCondition.
const asCondition, asValue = true, false

// compileExpression compiles an expression. If isCondition is true, the expression must yield a bool. If the
// expression does not compile, compileExpression adds problems and returns nil. It also adds a problem for each
// name that has no value at this position in the file.
func (l *loader) compileExpression(env *cel.Env, keyPath strictyaml.Path, text string, isCondition bool) *cel.Program {
	compile := env.Compile
	if isCondition {
		compile = env.CompileBool
	}

	program, err := compile(text)

	// An invalid expression has no other errors than a CompileError.
	var compileErr *cel.CompileError
	if errors.As(err, &compileErr) {
		for _, issue := range compileErr.Issues {
			problem, isLocated := l.doc.ProblemInside(keyPath, issue.Line, issue.Column, "%s", issue.Message)
			if !isLocated {
				problem.Message += fmt.Sprintf(", at %d:%d of the expression", issue.Line, issue.Column)
			}

			hint := issue.Hint
			if name, ok := strings.CutPrefix(issue.Message, "unknown variable or function "); ok && env == l.captureEnv && hint == "" {
				hint = "to read a field of the response, write response." + name
			}

			l.problems = append(l.problems, problem.WithHint("%s", hint))
		}

		return nil
	}

	for _, name := range program.Variables() {
		// Names that this file does not declare, such as item, always have a value, except for resources.
		if isDeclared := l.declared[name] != "" || name == varResources; isDeclared && !l.available[name] {
			l.reportUnavailable(keyPath, name)
		}
	}

	l.addReads(program.ListReads(varResources)...)
	l.warnObservedGeneration(keyPath, text)

	return program
}

// warnObservedGeneration adds a warning if an expression reads the observedGeneration of a
// condition of a manifest in a ManifestWork. The work agent of Open Cluster Management sets it
// only for the condition Applied.
func (l *loader) warnObservedGeneration(keyPath strictyaml.Path, text string) {
	if !strings.Contains(text, "observedGeneration") || strings.Contains(text, conditionApplied) {
		return
	}

	readsManifestStatus := strings.Contains(text, "resourceStatus")

	for i := range l.task.Spec.Resources {
		for _, nested := range l.task.Spec.Resources[i].NestedDiscoveries {
			readsManifestStatus = readsManifestStatus ||
				regexp.MustCompile(`resources\.\??`+regexp.QuoteMeta(nested.Name)+`\b`).MatchString(text)
		}
	}

	if readsManifestStatus {
		l.warnf(keyPath, "compare the observedGeneration of the work's own conditions, status.conditions",
			"conditions of a manifest in a ManifestWork have no observedGeneration, except for Applied")
	}
}

// reportUnavailable adds a problem for a name that has no value at this position in the file.
func (l *loader) reportUnavailable(keyPath strictyaml.Path, name string) {
	if name == varResources {
		l.addProblem(keyPath, "%s is not available here, because the resources phase runs later", name)

		return
	}

	l.addProblem(keyPath, "%s is not available here, because it is %s that is defined later", name, l.declared[name])
}

// compileTemplate compiles a template. If the template is invalid, it adds a problem and returns nil.
func (l *loader) compileTemplate(keyPath strictyaml.Path, text string) *Template {
	return l.compileWithSlots(keyPath, text, nil)
}

// compileWithSlots compiles a template as compileTemplate does. If slots is not nil, the rendered text has slots.
func (l *loader) compileWithSlots(keyPath strictyaml.Path, text string, slots *slots) *Template {
	out, err := newTemplate(text, l.clock, slots)
	if err != nil {
		l.addProblem(keyPath, "invalid template: %v", err)

		return nil
	}

	l.usedVariables = append(l.usedVariables, out.Variables()...)

	if out.readsAll {
		l.addReads(nil)
	}

	for _, variable := range out.references {
		if message, hint := l.checkVariable(variable); message != "" {
			l.addProblem(keyPath, "%s", message).Hint = hint
		}

		if variable.variable == varResources {
			l.addReads(variable.path)
		}
	}

	return out
}

func (l *loader) compileOptionalTemplate(keyPath strictyaml.Path, text string) *Template {
	if text == "" {
		return nil
	}

	return l.compileTemplate(keyPath, text)
}

// checkVariable returns a message and a hint if the variable or its field does not exist or has no
// value at this position in the file, and empty strings otherwise.
func (l *loader) checkVariable(reference variableRef) (message, hint string) {
	switch {
	case reference.variable == nowVariable && reference.field != "":
		return "now has no field " + reference.field, `for another format, write {{ now | date "2006-01-02" }}`
	case reference.variable == nowVariable:
		return "", ""
	}

	if !l.available[reference.variable] {
		if description := l.declared[reference.variable]; description != "" {
			return fmt.Sprintf("variable %s is not available here, because it is %s that is defined later",
				reference.variable, description), ""
		}

		names := slices.Collect(maps.Keys(l.available))

		return "unknown variable " + reference.variable, strictyaml.SuggestName(reference.variable, append(names, nowVariable))
	}

	fields := l.listFields(reference.variable)
	if reference.field == "" || fields == nil || slices.Contains(fields, reference.field) {
		return "", ""
	}

	return fmt.Sprintf("unknown %s.%s", reference.variable, reference.field), strictyaml.SuggestName(reference.field, fields)
}

// listFields returns the fields of a variable, and nil if they are unknown.
func (l *loader) listFields(variable string) []string {
	switch variable {
	case varResources:
		return append([]string{}, l.objectNames...)
	case varAdapter:
		return AdapterFields()
	case varEnv:
		if l.deployment != nil {
			return append([]string{}, l.deployment.Environment...)
		}
	case varConfig:
		if l.deployment != nil {
			return listConfigFields()
		}
	}

	return nil
}
