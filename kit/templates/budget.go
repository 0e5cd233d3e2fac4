// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package templates

import "fmt"

// Limits that apply to every template, and the default of Limits.Steps.
const (
	// DefaultSteps is the default maximum number of executed nodes.
	DefaultSteps = 100_000
	// MaxDepth is the maximum depth of template calls.
	MaxDepth = 100
	// MaxActions is the maximum number of actions in a text. The parser recurses for each action that
	// opens a block.
	MaxActions = 5000
)

// Limits limit the executions of one template.
type Limits struct {
	// Output is the maximum size of the result in bytes.
	Output int
	// Work is the maximum total size in bytes of all texts that functions create during the execution.
	Work int
	// Steps is the maximum number of executed nodes. 0 means DefaultSteps.
	Steps int
}

// LimitKind identifies a limit.
type LimitKind int

// The limits.
const (
	OutputLimit LimitKind = iota
	WorkLimit
	StepsLimit
	DepthLimit
	ActionsLimit
)

// LimitError is the error for a template that exceeds a limit.
type LimitError struct {
	Kind  LimitKind
	Limit int
}

// Error names the limit and the fix.
func (e *LimitError) Error() string {
	switch e.Kind {
	case OutputLimit:
		return fmt.Sprintf("the output of the template has more than %d bytes: shorten it", e.Limit)
	case WorkLimit:
		return fmt.Sprintf("the functions of the template create more than %d bytes of text in total: "+
			"create fewer or shorter texts", e.Limit)
	case StepsLimit:
		return fmt.Sprintf("the template executes more than %d steps in its loops and calls: loop over fewer elements", e.Limit)
	case DepthLimit:
		return fmt.Sprintf("the calls of templates are nested more than %d deep: end the recursion earlier", e.Limit)
	default:
		return fmt.Sprintf("the text has more than %d actions: use fewer actions", e.Limit)
	}
}

// Budget tracks how much of its limits one execution has used. The functions of templates count
// their texts on it.
type Budget struct {
	limits             Limits
	work, steps, depth int
}

// CheckWork returns a LimitError if a text of this size would exceed the work limit. It does not
// count the text.
func (b *Budget) CheckWork(bytes int) error {
	if bytes < 0 || bytes > b.limits.Work-b.work {
		return &LimitError{Kind: WorkLimit, Limit: b.limits.Work}
	}

	return nil
}

// CountWork counts a text that a function has created, and returns the text. It returns a
// LimitError if the text exceeds the work limit.
func (b *Budget) CountWork(text string) (string, error) {
	if err := b.CheckWork(len(text)); err != nil {
		return "", err
	}

	b.work += len(text)

	return text, nil
}

// countSteps adds to the steps of the template. Templates call it as a function, so it returns a text, which is empty.
func (b *Budget) countSteps(nodes int) (string, error) {
	if b.steps += nodes; b.steps > b.limits.Steps {
		return "", &LimitError{Kind: StepsLimit, Limit: b.limits.Steps}
	}

	return "", nil
}

func (b *Budget) enterTemplate() (string, error) {
	b.depth++
	if b.depth > MaxDepth {
		return "", &LimitError{Kind: DepthLimit, Limit: MaxDepth}
	}

	return "", nil
}

func (b *Budget) leaveTemplate() string {
	b.depth--

	return ""
}
