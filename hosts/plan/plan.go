// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Kind says what a part leaves on a host.
type Kind string

const (
	// File is a text file.
	File Kind = "file"
	// Unit is a text file that the host's service manager reads.
	Unit Kind = "unit"
	// Executable is a program.
	Executable Kind = "binary"
	// Script changes the host by running. It leaves no file that the plan describes.
	Script Kind = "script"
)

// KubeconfigLabel is the label of the part with which a host joins its cluster.
const KubeconfigLabel = "kubeconfig"

// Schedule says when a part is applied.
type Schedule string

const (
	// Always means on the first boot and whenever the host has drifted. Such a part is hashed.
	Always Schedule = "always"
	// FirstBoot means only on the first boot, because a later change would stop the machines that
	// run on the host. Such a part is not hashed, so a new version reaches only new hosts.
	FirstBoot Schedule = "first-boot"
)

// Part is one item that is pushed to a host.
type Part struct {
	// Label identifies the part in digests, differences and events. It consists of lower-case words
	// that are separated by hyphens.
	Label    string
	Kind     Kind
	Schedule Schedule
	// Path, Mode and Owner ("user:group") of the file. They are empty for a script.
	Path  string
	Mode  fs.FileMode
	Owner string
	// Content is the standard input of Apply.
	Content Content
	// Secret is the standard input of Apply instead of Content. It is in no digest.
	Secret log.Secret
	// Apply is the bash script that applies the part, as root. It is idempotent, and the same on
	// the first boot and later.
	Apply string
	// Probe consists of bash commands that exit with 0 if the part is intact. They only read.
	Probe string
	// Reapplies are the labels of later parts that must be applied again whenever this part was
	// applied, for example the restart of a job after its program has changed.
	Reapplies []string
}

// IsHashed returns true if the part is in the digest of a plan. That is the case if and only if the
// part is applied to drifted hosts.
func (p Part) IsHashed() bool { return p.Schedule == Always }

// Plan is the list of all parts of a host, in the order in which they are applied.
type Plan struct{ parts []Part }

// New returns a plan of the parts. It returns an error if a part is invalid, for example if two
// parts have the same label.
func New(parts ...Part) (Plan, error) {
	var errs []error

	for i, part := range parts {
		errs = append(errs, validatePart(part, parts[:i], parts[i+1:]))
	}

	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}

	return Plan{parts: slices.Clone(parts)}, nil
}

// Parts returns the parts in order.
func (p Plan) Parts() []Part { return slices.Clone(p.parts) }

// FindPart returns the part with the label, and false if there is none.
func (p Plan) FindPart(label string) (Part, bool) {
	i := indexOf(p.parts, label)
	if i < 0 {
		return Part{}, false
	}

	return p.parts[i], true
}

// FirstBootSteps returns the parts to apply to a new host: all parts in order.
func (p Plan) FirstBootSteps() []Part { return p.Parts() }

// DriftSteps returns the parts to apply to a host whose parts with the given labels have drifted:
// these parts and those that they reapply, in order. It ignores unknown labels and parts of the
// first boot.
func (p Plan) DriftSteps(drifted ...string) []Part {
	chosen := map[string]bool{}
	for _, label := range drifted {
		chosen[label] = true
	}

	var steps []Part

	for _, part := range p.parts {
		if !chosen[part.Label] || part.Schedule != Always {
			continue
		}

		steps = append(steps, part)

		for _, follower := range part.Reapplies {
			chosen[follower] = true
		}
	}

	return steps
}

func indexOf(parts []Part, label string) int {
	return slices.IndexFunc(parts, func(p Part) bool { return p.Label == label })
}

var (
	labelPattern = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	ownerPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]*:[a-z_][a-z0-9_-]*$`)
)

// validatePart returns an error if a part is invalid, given the parts before and after it.
func validatePart(part Part, before, after []Part) error {
	newError := func(format string, args ...any) error {
		return fmt.Errorf("part %q: %w", part.Label, fmt.Errorf(format, args...))
	}

	switch {
	case !labelPattern.MatchString(part.Label):
		return newError("the label must be words of a-z and 0-9, separated by hyphens")
	case indexOf(before, part.Label) >= 0:
		return newError("the label is used twice: labels must be unique")
	case !slices.Contains([]Kind{File, Unit, Executable, Script}, part.Kind):
		return newError("kind %q: must be file, unit, binary or script", part.Kind)
	case part.Schedule != Always && part.Schedule != FirstBoot:
		return newError("when %q: must be always or first-boot", part.Schedule)
	case part.Apply == "":
		return newError("the Apply script is missing")
	case part.Probe == "" && part.Schedule == Always:
		return newError("the probe is missing, so a loss of the part would not be detected")
	case part.Content.Size() > 0 && !part.Secret.IsEmpty():
		return newError("the part has content and a secret: standard input can carry only one of them")
	}

	for _, follower := range part.Reapplies {
		if i := indexOf(after, follower); i < 0 || after[i].Schedule != Always {
			return newError("it reapplies %q, which is not a later part that is always applied", follower)
		}
	}

	return validateFile(part, newError)
}

func validateFile(part Part, newError func(string, ...any) error) error {
	if part.Kind == Script {
		if part.Path != "" || part.Mode != 0 || part.Owner != "" {
			return newError("a script leaves no file, so it must have no path, mode or owner")
		}

		return nil
	}

	if !path.IsAbs(part.Path) || path.Clean(part.Path) != part.Path || strings.ContainsAny(part.Path, "\n\x00") {
		return newError("path %q: must be absolute, without . and ..", part.Path)
	}

	if part.Mode == 0 || part.Mode&^fs.ModePerm != 0 || part.Mode&0o022 != 0 {
		return newError("mode %#o: must consist of permission bits, and only the owner may have write permission", part.Mode)
	}

	if !ownerPattern.MatchString(part.Owner) {
		return newError("owner %q: must be user:group", part.Owner)
	}

	return nil
}
