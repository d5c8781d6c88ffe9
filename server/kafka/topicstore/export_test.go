package topicstore

// AtStep makes a function be called at each step of a transaction: begin, messages, state and
// end, and of a trim at start, when that is stored. An error of it ends the log there and then,
// as a kill does. It is called before the log is used.
func (l *Log) AtStep(f func(step string) error) { l.step = f }
